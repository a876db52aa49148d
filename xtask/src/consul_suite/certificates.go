// Makes the certificates that tests of the client read from its repository and that its module does not bring.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func write(path string, bytes []byte) {
	must(0, os.MkdirAll(filepath.Dir(path), 0o755))
	must(0, os.WriteFile(path, bytes, 0o600))
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, big.NewInt(1<<62))),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
	}
}

func root(name string) authority {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	own := template(name)
	own.IsCA, own.BasicConstraintsValid = true, true
	own.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der := must(x509.CreateCertificate(rand.Reader, own, own, &key.PublicKey, key))
	certificate := must(x509.ParseCertificate(der))
	return authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (ca authority) leaf(name string, path string) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	own := template(name)
	own.DNSNames, own.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
	own.KeyUsage = x509.KeyUsageDigitalSignature
	own.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der := must(x509.CreateCertificate(rand.Reader, own, ca.certificate, &key.PublicKey, ca.key))
	write(path+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	private := must(x509.MarshalECPrivateKey(key))
	write(path+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}))
}

func main() {
	folder := os.Args[1]
	clients := root("clients")
	write(filepath.Join(folder, "client_certs/rootca.crt"), clients.pem)
	clients.leaf("consul.test", filepath.Join(folder, "client_certs/server"))
	clients.leaf("client.test", filepath.Join(folder, "client_certs/client"))
	hostname := root("CertAuth")
	write(filepath.Join(folder, "hostname/CertAuth.crt"), hostname.pem)
	hostname.leaf("Alice", filepath.Join(folder, "hostname/Alice"))
	for _, name := range []string{"cert1", "cert2"} {
		write(filepath.Join(folder, "ca_path", name+".crt"), root(name).pem)
	}
}
