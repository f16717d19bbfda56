package tlsfiles

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

type validity struct{ from, to time.Time }

func hours(from, to int) validity {
	now := time.Now().Truncate(time.Second)
	return validity{now.Add(time.Duration(from) * time.Hour), now.Add(time.Duration(to) * time.Hour)}
}

func sign(t *testing.T, parent *authority, name string, v validity) (certPEM, keyPEM []byte, made authority) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: v.from, NotAfter: v.to, DNSNames: []string{name},
		IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, signedBy := key, template
	if parent != nil {
		signer, signedBy = parent.key, parent.cert
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signedBy, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return certPEM, keyPEM, authority{cert: cert, key: key, pem: certPEM}
}

func newAuthority(t *testing.T, v validity) *authority {
	t.Helper()
	_, _, a := sign(t, nil, "authority", v)
	return &a
}

// bench is a directory with the three files, and what was reported.
type bench struct {
	t     *testing.T
	files Files

	mu      sync.Mutex
	reports []error
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	b := &bench{t: t}
	b.files = Files{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
		Section: "kafka.tls",
		Report: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.reports = append(b.reports, err)
		},
	}
	return b
}

func (b *bench) write(path string, text []byte) {
	b.t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) fill(ca *authority, name string, v validity) {
	b.t.Helper()
	cert, key, _ := sign(b.t, ca, name, v)
	b.write(b.files.CA, ca.pem)
	b.write(b.files.Cert, cert)
	b.write(b.files.Key, key)
}

func (b *bench) source() *Source {
	b.t.Helper()
	s, err := New(b.files)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// reported returns and forgets what was reported.
func (b *bench) reported() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := ""
	if err := errors.Join(b.reports...); err != nil {
		text = err.Error()
	}
	b.reports = nil
	return text
}

// shake has a client and a server shake hands and returns what each saw.
func shake(t *testing.T, server *tls.Config, client *tls.Config) (seenByClient, seenByServer []*x509.Certificate, err error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	type end struct {
		certs []*x509.Certificate
		err   error
	}
	result := make(chan end, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			result <- end{err: err}
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(time.Minute)) // against hanging
		srv := tls.Server(conn, server)
		err = srv.Handshake()
		if err == nil {
			_, err = srv.Write([]byte{1}) // a refusal of TLS 1.3 comes after the client's handshake
		}
		if err == nil {
			_, err = io.ReadFull(srv, make([]byte, 1))
		}
		result <- end{srv.ConnectionState().PeerCertificates, err}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	cli := tls.Client(conn, client)
	err = cli.Handshake()
	if err == nil {
		_, err = io.ReadFull(cli, make([]byte, 1))
	}
	if err == nil {
		_, err = cli.Write([]byte{1})
	}
	_ = conn.Close()
	at := <-result
	if err == nil {
		err = at.err
	}
	return cli.ConnectionState().PeerCertificates, at.certs, err
}

func client(t *testing.T, s *Source, name string) *tls.Config {
	t.Helper()
	c, err := s.Client(name, false)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRotatedFilesCountFromTheNextConnection(t *testing.T) {
	first, second := newAuthority(t, hours(-1, 10)), newAuthority(t, hours(-1, 20))
	server, cli := newBench(t), newBench(t)
	server.fill(first, "broker", hours(-1, 3))
	cli.fill(first, "joiner", hours(-1, 4))
	ss, cs := server.source(), cli.source()
	listener := ss.Server(true) // made once, as a listener's is

	atServer, atClient, err := shake(t, listener, client(t, cs, "broker"))
	if err != nil {
		t.Fatal(err)
	}
	if atServer[0].Subject.CommonName != "broker" || atClient[0].Subject.CommonName != "joiner" {
		t.Fatalf("saw %v and %v", atServer[0].Subject, atClient[0].Subject)
	}

	server.fill(second, "broker", hours(-1, 5))
	if _, _, err := shake(t, listener, client(t, cs, "broker")); err == nil {
		t.Error("a server of another authority was trusted")
	}
	cli.fill(second, "joiner2", hours(-1, 6))
	_, atClient, err = shake(t, listener, client(t, cs, "broker"))
	if err != nil {
		t.Fatal(err)
	}
	if atClient[0].Subject.CommonName != "joiner2" {
		t.Errorf("after the rotation the client showed %v", atClient[0].Subject)
	}
	cert, ca := cs.NotAfter()
	if want := hours(-1, 6).to; !cert.Equal(want) && cert.Sub(want).Abs() > time.Minute {
		t.Errorf("the certificate is valid until %v, want %v", cert, want)
	}
	if !ca.Equal(second.cert.NotAfter) {
		t.Errorf("the authority is valid until %v, want %v", ca, second.cert.NotAfter)
	}
	if got := cli.reported() + server.reported(); got != "" {
		t.Errorf("reported: %s", got)
	}
}

func TestBrokenRotationKeepsTheLastGoodOne(t *testing.T) {
	ca := newAuthority(t, hours(-1, 10))
	server, cli := newBench(t), newBench(t)
	server.fill(ca, "broker", hours(-1, 3))
	cli.fill(ca, "joiner", hours(-1, 3))
	listener, cs := server.source().Server(true), cli.source()

	otherCert, otherKey, _ := sign(t, ca, "other", hours(-1, 3))
	expired, expiredKey, _ := sign(t, ca, "expired", hours(-3, -1))
	early, earlyKey, _ := sign(t, ca, "early", hours(1, 3))
	cert, key, _ := sign(t, ca, "joiner", hours(-1, 3))
	for _, c := range []struct {
		name  string
		spoil func()
		wants []string
	}{
		{"half a certificate", func() { cli.write(cli.files.Cert, cert[:len(cert)/2]) }, []string{"kafka.tls.cert_file", cli.files.Cert}},
		{"an empty certificate", func() { cli.write(cli.files.Cert, nil) }, []string{"kafka.tls.cert_file", cli.files.Cert}},
		{"the new certificate before its key", func() { cli.write(cli.files.Cert, otherCert) }, []string{cli.files.Cert, cli.files.Key, "does not match"}},
		{"the new key before its certificate", func() { cli.write(cli.files.Key, otherKey) }, []string{cli.files.Cert, cli.files.Key, "does not match"}},
		{"no key", func() { _ = os.Remove(cli.files.Key) }, []string{"kafka.tls.key_file", cli.files.Key}},
		{"an expired pair", func() { cli.write(cli.files.Cert, expired); cli.write(cli.files.Key, expiredKey) }, []string{"expired at", cli.files.Cert}},
		{"an early pair", func() { cli.write(cli.files.Cert, early); cli.write(cli.files.Key, earlyKey) }, []string{"not valid before", cli.files.Cert}},
		{"half an authority", func() { cli.write(cli.files.CA, ca.pem[:len(ca.pem)/2]) }, []string{"kafka.tls.ca_file", cli.files.CA}},
		{"an authority and a half", func() { cli.write(cli.files.CA, append(bytes.Clone(ca.pem), ca.pem[:len(ca.pem)/2]...)) }, []string{"kafka.tls.ca_file", "block 1"}},
		{"no authority", func() { _ = os.Remove(cli.files.CA) }, []string{"kafka.tls.ca_file", cli.files.CA}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cli.write(cli.files.CA, ca.pem)
			cli.write(cli.files.Cert, cert)
			cli.write(cli.files.Key, key)
			client(t, cs, "broker")
			if got := cli.reported(); got != "" || len(cs.Faults()) != 0 {
				t.Fatalf("good files were reported: %s, %q", got, cs.Faults())
			}
			c.spoil()
			_, shown, err := shake(t, listener, client(t, cs, "broker"))
			if err != nil {
				t.Fatal(err)
			}
			if shown[0].Subject.CommonName != "joiner" {
				t.Errorf("the client showed %v", shown[0].Subject)
			}
			got, faults := cli.reported(), cs.Faults()
			for _, want := range append(c.wants, "; going on with what was there before") {
				if !strings.Contains(got, want) || len(faults) != 1 || !strings.Contains(faults[0], want) {
					t.Errorf("reported %q, and %q, want %q in it", got, faults, want)
				}
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	ca := newAuthority(t, hours(-1, 10))
	_, otherKey, _ := sign(t, ca, "other", hours(-1, 3))
	for _, c := range []struct {
		name   string
		change func(b *bench)
		wants  []string
	}{
		{"a mismatched pair", func(b *bench) { b.write(b.files.Key, otherKey) }, []string{"kafka.tls.cert_file", "kafka.tls.key_file", "does not match"}},
		{"a missing authority", func(b *bench) { _ = os.Remove(b.files.CA) }, []string{"kafka.tls.ca_file", "no such file"}},
		{"an authority that is a key", func(b *bench) { b.write(b.files.CA, otherKey) }, []string{"kafka.tls.ca_file", "PRIVATE KEY"}},
		{"a key that is a certificate", func(b *bench) { b.write(b.files.Key, ca.pem) }, []string{"kafka.tls.key_file", "no PEM private key"}},
		{"an encrypted key", func(b *bench) {
			b.write(b.files.Key, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte{1}}))
		}, []string{"kafka.tls.key_file", "encrypted"}},
		{"a directory", func(b *bench) { b.files.CA = filepath.Dir(b.files.CA) }, []string{"kafka.tls.ca_file", "not a regular file"}},
		{"a certificate without key", func(b *bench) { b.files.Key = "" }, []string{"kafka.tls.cert_file", "kafka.tls.key_file"}},
		{"text", func(b *bench) { b.write(b.files.Cert, []byte("hello")) }, []string{"kafka.tls.cert_file", "no PEM certificate"}},
		{"a huge file", func(b *bench) { b.write(b.files.CA, make([]byte, maxBytes+1)) }, []string{"kafka.tls.ca_file", "larger"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.fill(ca, "joiner", hours(-1, 3))
			c.change(b)
			_, err := New(b.files)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("said %q, want %q in it", err, want)
				}
			}
			if secret := secretOf(otherKey); strings.Contains(err.Error(), secret) {
				t.Error("the error shows the key")
			}
		})
	}
}

// secretOf is a line of a key's PEM text.
func secretOf(key []byte) string { return strings.Split(string(key), "\n")[1] }

func TestExpiredCertificateIsUsedAndReported(t *testing.T) {
	ca := newAuthority(t, hours(-4, 10))
	b := newBench(t)
	b.fill(ca, "joiner", hours(-3, -1))
	s := b.source()
	if got := b.reported(); !strings.Contains(got, "expired at") || !strings.Contains(got, b.files.Cert) {
		t.Errorf("at the start reported %q", got)
	}
	if got := s.Faults(); len(got) != 1 || !strings.Contains(got[0], "expired at") {
		t.Errorf("at the start: %q", got)
	}
	if conf := client(t, s, "broker"); conf.GetClientCertificate == nil {
		t.Error("nothing would be shown")
	}
	if got := b.reported(); !strings.Contains(got, "expired at") {
		t.Errorf("for a connection reported %q", got)
	}
	b.fill(ca, "joiner", hours(-1, 3))
	client(t, s, "broker")
	if got := b.reported(); got != "" {
		t.Errorf("after the renewal reported %q", got)
	}
}

// Files that no connection asks for are looked at all the same.
func TestFilesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t, validity{time.Now().Add(-time.Hour), time.Now().Add(time.Hour)})
		b := newBench(t)
		b.fill(ca, "joiner", validity{time.Now().Add(-time.Hour), time.Now().Add(time.Minute)})
		s := b.source()
		ctx, cancel := context.WithCancel(t.Context())
		go s.Watch(ctx)
		time.Sleep(45 * time.Second)
		if got := s.Faults(); len(got) != 0 {
			t.Errorf("%q", got)
		}
		time.Sleep(time.Minute)
		if got := s.Faults(); len(got) != 1 || !strings.Contains(got[0], "expired at") {
			t.Errorf("%q", got)
		}
		b.fill(ca, "joiner", validity{time.Now().Add(-time.Hour), time.Now().Add(time.Hour)})
		time.Sleep(watchEvery)
		synctest.Wait()
		if got := s.Faults(); len(got) != 0 {
			t.Errorf("%q", got)
		}
		cancel()
	})
}

func TestServerWithoutAuthoritiesTrustsNobody(t *testing.T) {
	ca := newAuthority(t, hours(-1, 10))
	server, cli := newBench(t), newBench(t)
	server.fill(ca, "pod", hours(-1, 3))
	cli.fill(ca, "joiner", hours(-1, 3))
	server.files.CA = ""
	s := server.source()
	if _, _, err := shake(t, s.Server(true), client(t, cli.source(), "pod")); err == nil {
		t.Error("a client was let in without anybody named to sign for it")
	}
	// The system's authorities would refuse this client too, but not others.
	if _, err := s.Server(true).GetConfigForClient(nil); err == nil || !strings.Contains(err.Error(), "kafka.tls.ca_file") {
		t.Errorf("without anybody named the listener says %v", err)
	}
	if _, _, err := shake(t, s.Server(false), client(t, cli.source(), "pod")); err != nil {
		t.Errorf("without the demand: %v", err)
	}
	if cert, ca := s.NotAfter(); cert.IsZero() || !ca.IsZero() {
		t.Errorf("valid until %v and %v, want a time and none", cert, ca)
	}
}

func TestServerDemandsACertificate(t *testing.T) {
	ca, stranger := newAuthority(t, hours(-1, 10)), newAuthority(t, hours(-1, 10))
	server, cli := newBench(t), newBench(t)
	server.fill(ca, "pod", hours(-1, 3))
	listener := server.source().Server(true)
	cli.fill(ca, "joiner", hours(-1, 3))

	none := cli.files
	none.Cert, none.Key = "", ""
	s, err := New(none)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := shake(t, listener, client(t, s, "pod")); err == nil {
		t.Error("a client without certificate was let in")
	}
	cert, key, _ := sign(t, stranger, "joiner", hours(-1, 3))
	cli.write(cli.files.Cert, cert)
	cli.write(cli.files.Key, key)
	if _, _, err := shake(t, listener, client(t, cli.source(), "pod")); err == nil {
		t.Error("a client of another authority was let in")
	}
}

func TestClientChecksTheName(t *testing.T) {
	ca := newAuthority(t, hours(-1, 10))
	server, cli := newBench(t), newBench(t)
	server.fill(ca, "broker", hours(-1, 3))
	cli.fill(ca, "joiner", hours(-1, 3))
	listener, s := server.source().Server(false), cli.source()
	var wrong x509.HostnameError
	if _, _, err := shake(t, listener, client(t, s, "elsewhere")); !errors.As(err, &wrong) {
		t.Errorf("another name gave %v", err)
	}
	if _, err := s.Client("", false); err == nil {
		t.Error("a client without a name to check was made")
	}
	conf, err := s.Client("", true)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := shake(t, listener, conf); err != nil {
		t.Errorf("insecure: %v", err)
	}
}

func TestOldVersionsAreRefused(t *testing.T) {
	ca := newAuthority(t, hours(-1, 10))
	server, cli := newBench(t), newBench(t)
	server.fill(ca, "broker", hours(-1, 3))
	cli.fill(ca, "joiner", hours(-1, 3))
	conf := client(t, cli.source(), "broker")
	conf.MinVersion, conf.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, _, err := shake(t, server.source().Server(false), conf); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	if conf := client(t, cli.source(), "broker"); conf.MinVersion != tls.VersionTLS12 {
		t.Errorf("a client begins at version %x", conf.MinVersion)
	}
}

func TestTheEarliestAuthorityCounts(t *testing.T) {
	later, sooner := newAuthority(t, hours(-1, 10)), newAuthority(t, hours(-1, 2))
	b := newBench(t)
	b.write(b.files.CA, append(bytes.Clone(later.pem), sooner.pem...))
	b.files.Cert, b.files.Key = "", ""
	cert, ca := b.source().NotAfter()
	if !cert.IsZero() || !ca.Equal(sooner.cert.NotAfter) {
		t.Errorf("valid until %v and %v, want none and %v", cert, ca, sooner.cert.NotAfter)
	}
}

// A certificate renewed in time must not look as if it had not been, and no
// connection may be needed to see one that will not last.
func TestExpiryIsThatOfTheFilesNow(t *testing.T) {
	first, second := newAuthority(t, hours(-1, 10)), newAuthority(t, hours(-1, 5))
	b := newBench(t)
	valid := hours(-1, 3)
	b.fill(first, "joiner", valid)
	s := b.source()
	expect := func(what string, v validity, authority *authority) {
		t.Helper()
		cert, ca := s.NotAfter()
		if !cert.Equal(v.to) || !ca.Equal(authority.cert.NotAfter) {
			t.Errorf("%s: valid until %v and %v, want %v and %v", what, cert, ca, v.to, authority.cert.NotAfter)
		}
	}
	expect("at first", valid, first)
	for _, hoursLeft := range []int{9, 1} {
		valid = hours(-1, hoursLeft)
		b.fill(second, "joiner", valid)
		expect("replaced", valid, second)
	}
	if got := b.reported(); got != "" {
		t.Errorf("reported: %s", got)
	}
	b.fill(first, "joiner", hours(-2, -1))
	expect("one that has expired", valid, first)
	if got := b.reported(); !strings.Contains(got, "expired") {
		t.Errorf("of an expired certificate was reported: %q", got)
	}
}

func TestManyConnectionsAtOnce(t *testing.T) {
	ca := newAuthority(t, hours(-1, 10))
	b := newBench(t)
	b.fill(ca, "joiner", hours(-1, 3))
	s := b.source()
	listener := s.Server(true)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if _, _, err := shake(t, listener, client(t, s, "joiner")); err != nil {
					t.Error(err)
				}
				s.NotAfter()
			}
		})
	}
	for range 10 {
		b.fill(ca, "joiner", hours(-1, 3))
	}
	wg.Wait()
}
