# The few commands of this tree. `make` alone lists them.
#
# Tools (Envoy, etcd, grpcio, cargo-deny) are installed into .tools/ on first use, at pinned versions; nothing else on the
# machine changes, except that a missing C compiler, python3-venv or nft is installed with apt where that needs no question.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

CARGO ?= cargo
# With the lock file as it is: a check that quietly updates it has checked something else.
XTASK := $(CARGO) run --quiet --locked --package xtask --
export CARGO_TERM_COLOR ?= $(if $(CI),never,auto)

TOOLS := $(CURDIR)/.tools
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

# The profile of `make demo`. A debug build is there in half the time of a release build (thin LTO of the whole tree),
# and shares its objects with `make test`. `make demo PROFILE=release` shows it at full speed.
PROFILE ?= dev

# What `make bench-fleet` runs, and where reports are left: `make bench-fleet SCENARIOS="propagation churn"` runs these alone.
# `payload` is propagation again, with an upstream of a thousand endpoints: how much does a change of one of them send?
SCENARIOS ?= latency-of-change scale propagation payload intention rollout reconnect churn faults
options_of_propagation := --growth
options_of_payload := --payload-endpoints 1000 --changes 10 --further 0
REPORTS ?= $(TARGET)/bench

# The fuzz targets, each a parser of outside bytes, and how long each is run.
FUZZED := request response body first_bytes path proxy_protocol trace snapshot dns filter consul_text
FUZZ_SECONDS ?= 60

# What `make chaos` does, and from which seed; without one, a new one, which it tells.
FAULTS ?= 300
SEED ?=

# What the tests and the demo run against; a path in the environment wins.
export STARLING_ENVOY ?= $(TOOLS)/bin/envoy
export STARLING_ETCD ?= $(TOOLS)/bin/etcd
export STARLING_PYTHON ?= $(TOOLS)/venv/bin/python
export STARLING_BIN ?= $(TARGET)/debug/starling
export PATH := $(TOOLS)/bin:$(PATH)

.PHONY: help demo test upgrade chaos check fmt bench bench-published bench-fleet bench-servers bench-proxy bench-store bench-consul attack agreement consul-suite consul-clients conformance fuzz golden install clean machine

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: machine ## bring up a mesh of four services with live traffic; Ctrl-C ends it
	exec $(CARGO) run --locked --profile $(PROFILE) --bin starling -- dev --demo

test: machine ## install Envoy, etcd, grpcio and nft, then run every test
	@$(XTASK) install envoy etcd grpcio nftables
	@# The end-to-end tests run the binary. Built for the whole workspace, so that its crates have the same features
	@# as in the tests and are compiled once.
	$(CARGO) build --locked --workspace --bins
	$(CARGO) test --locked --workspace

upgrade: machine ## build the release before this one (the commit before it, as long as there is none), then upgrade from it under load
	@$(XTASK) install envoy etcd
	STARLING_PREVIOUS=$$($(XTASK) previous); export STARLING_PREVIOUS; \
		$(CARGO) build --locked --workspace --bins; \
		$(CARGO) test --locked --workspace --test e2e rolling:: -- --nocapture --test-threads 1

chaos: machine ## three servers on three members of etcd under load and $(FAULTS) faults (some 25 minutes; needs root), then a judgement
	@$(XTASK) install etcd nftables
	$(CARGO) build --locked --workspace --bins
	$(TARGET)/debug/chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

check: machine ## formatting, house rules, licences and bans, lints, documentation; warnings are errors
	$(CARGO) fmt --all --check
	$(XTASK) tidy
	$(XTASK) install cargo-deny
	$(TOOLS)/bin/cargo-deny --locked check bans licenses sources
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --workspace

fmt: ## format everything
	$(CARGO) fmt --all

bench: machine ## release build, then a short run of every benchmark (ten minutes), with one page of all
	@$(XTASK) install envoy nftables
	$(CARGO) build --locked --release --bin starling
	$(TARGET)/release/starling bench suite quick --report $(REPORTS)/quick

bench-published: machine ## release build, then what reproduces the published studies, at their size (two hours), with one page
	@$(XTASK) install envoy nftables
	$(CARGO) build --locked --release --bin starling
	$(TARGET)/release/starling bench suite published --report $(REPORTS)/published

bench-fleet: machine ## release build, then the benchmarks of the control plane at full size (40 minutes); fails when a bar is missed
	@$(XTASK) install envoy nftables
	$(CARGO) build --locked --release --bin starling
	@# All run, whichever misses a bar.
	code=0; $(foreach run,$(SCENARIOS),$(TARGET)/release/starling bench $(if $(filter payload,$(run)),propagation,$(run)) \
		--strict --report $(REPORTS)/$(run) $(options_of_$(run)) || code=1; )exit $$code

# What `make bench-servers` runs: a change alone, one in the middle of which a server is killed with -9, and one in which etcd's leader is.
bench-servers: machine ## release build, then 3,000 nodes on three servers and three members of etcd (some 7 minutes); fails when a bar is missed
	@$(XTASK) install etcd
	$(CARGO) build --locked --release --bin starling
	@code=0; for run in propagation failover "failover --kill etcd-leader"; do \
		$(TARGET)/release/starling bench $$run --servers 3 --nodes 3000 --workloads 53400 --further 0 --envoys 0 \
			--strict --report $(REPORTS)/servers-$${run##* } || code=1; done; exit $$code

bench-proxy: machine ## release build, then the native data plane against Envoy (some 8 minutes); fails when a bar is missed
	@$(XTASK) install envoy
	$(CARGO) build --locked --release --bin starling
	@mkdir -p $(REPORTS)
	$(TARGET)/release/starling bench proxy --json $(REPORTS)/proxy.json

bench-consul: machine ## release build, then 10,000 blocking queries and DNS against their bars (a minute)
	$(CARGO) build --locked --release --bin starling
	@code=0; for run in watchers dns; do \
		$(TARGET)/release/starling bench $$run --strict --report $(REPORTS)/$$run || code=1; done; exit $$code

attack: machine ## release build, then floods of 20,000 connections against their bars (two minutes); STARLING_BIN for another binary
	$(CARGO) build --locked --release --bin starling
	STARLING_BIN=$${STARLING_BIN:-$(TARGET)/release/starling} $(CARGO) run --locked --package starling-attack

consul-suite: machine ## the tests of Consul's Go client against a debug build (some 10 minutes; needs Go); writes docs/reference/consul-compatibility.md
	$(CARGO) build --locked --workspace --bins
	$(XTASK) consul-suite --binary $(TARGET)/debug/starling

# Which clients `make consul-clients` runs: `make consul-clients CLIENTS="prometheus watch"` runs these alone.
CLIENTS ?=

consul-clients: machine ## Prometheus, consul-template and libraries for Python and Node.js against a debug build (some 3 minutes; needs Go, Python, Node.js)
	$(CARGO) build --locked --workspace --bins
	python3 -B testing/clients/run.py --binary $(TARGET)/debug/starling --tools $(TOOLS)/clients $(foreach client,$(CLIENTS),--only $(client))

bench-store: machine ## release build, then durable writes through three members of etcd beside etcd's own benchmark (needs Go)
	@$(XTASK) install etcd etcd-benchmark
	$(CARGO) build --locked --release --bin starling
	@mkdir -p $(REPORTS)
	STARLING_ETCD_BENCHMARK=$(TOOLS)/bin/etcd-benchmark $(TARGET)/release/starling bench store --json $(REPORTS)/store.json

agreement: machine ## release build, then `starling load` beside Fortio (needs Go) and wrk (needs to be there), on one echo server
	@$(XTASK) install fortio
	$(CARGO) build --locked --release --bin starling
	$(XTASK) agreement $(TARGET)/release/starling --fortio $(TOOLS)/bin/fortio

conformance: machine ## install h2spec (needs Go), then ask the native data plane what HTTP/2 demands
	@$(XTASK) install h2spec envoy
	$(CARGO) build --locked --workspace --bins
	$(CARGO) test --locked --package starling-e2e --features conformance --test conformance

fuzz: machine ## install cargo-fuzz (needs a nightly Rust), then fuzz every parser of outside bytes for a minute
	@$(XTASK) install cargo-fuzz
	@# Inputs of new coverage stay in the target folder; what shows a bug, or a new kind of input, is kept by hand.
	$(foreach parser,$(FUZZED),mkdir -p $(TARGET)/fuzz/corpus/$(parser); CARGO_TARGET_DIR=$(TARGET)/fuzz \
		$(CARGO) +nightly fuzz run --fuzz-dir fuzz $(parser) $(TARGET)/fuzz/corpus/$(parser) fuzz/corpus/$(parser) \
		-- -max_total_time=$(FUZZ_SECONDS) -max_len=4096;)

golden: machine ## rewrite the expected output of the scenario tests; review the diff
	STARLING_GOLDEN=rewrite $(CARGO) test --locked --workspace --exclude starling-e2e
	@-git --no-pager diff --stat

install: machine ## put all tools into .tools/
	$(XTASK) install envoy etcd grpcio cargo-deny nftables

clean: ## remove what was built; .tools/ stays (rm -rf .tools removes it)
	$(CARGO) clean
	rm -rf .demo

# A Rust toolchain and a C compiler; what can be put right without a question is.
machine:
	@sh xtask/machine.sh
