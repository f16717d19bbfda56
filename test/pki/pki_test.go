package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestIssued(t *testing.T) {
	made, err := NewAuthority("test authority")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
	own, err := made.Pair()
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Write(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	authority, err := Load(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("another authority")
	if err != nil {
		t.Fatal(err)
	}

	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, test := range []struct {
		name    string
		request Request
		trusted *Authority
		host    string
		usage   []x509.ExtKeyUsage
		valid   bool
	}{
		{"server by name", Request{Name: "broker", Hosts: []string{"localhost", "127.0.0.1"}}, made, "localhost", server, true},
		{"server by address", Request{Name: "broker", Hosts: []string{"localhost", "127.0.0.1"}}, made, "127.0.0.1", server, true},
		{"server as client", Request{Name: "broker", Hosts: []string{"localhost"}}, made, "", client, true},
		{"server by another name", Request{Name: "broker", Hosts: []string{"localhost"}}, made, "example.com", server, false},
		{"client", Request{Name: "joiner"}, made, "", client, true},
		{"client as server", Request{Name: "joiner"}, made, "", server, false},
		{"expired", Request{Name: "joiner", Validity: -time.Minute}, made, "", client, false},
		{"another authority", Request{Name: "joiner"}, other, "", client, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			issued, err := authority.Issue(test.request)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tls.X509KeyPair(issued.Cert, issued.Key); err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(issued.Cert)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(test.trusted.PEM())
			_, err = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: test.host, KeyUsages: test.usage})
			if (err == nil) != test.valid {
				t.Errorf("verified: %v", err)
			}
			if cert.Subject.CommonName != test.request.Name {
				t.Errorf("the name is %q", cert.Subject.CommonName)
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".part-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if info, err := os.Stat(keyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v %v", info, err)
	}
}
