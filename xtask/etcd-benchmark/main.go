// etcd's own benchmark, so that Go builds it from its module by name and version: the module replaces parts of itself by
// folders beside it, which `go install` does not take.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/v3/tools/benchmark/cmd"
)

func main() {
	if err := cmd.RootCmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
