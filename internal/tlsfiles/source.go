package tlsfiles

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Files names the PEM files. Each may be empty.
type Files struct {
	CA   string // the authorities trusted; empty: the system's
	Cert string // the certificate shown, with its chain; together with Key
	Key  string // its private key, not encrypted

	// Section is the configuration's section, such as kafka.tls: errors then
	// name the key beside the file (kafka.tls.ca_file).
	Section string

	// Report hears of files that cannot be used when they are read again, and
	// of certificates that are not valid now. It is called for each connection,
	// and each NotAfter, that finds the fault, by any goroutine: sample it. nil:
	// nobody hears.
	Report func(error)
}

// Source makes configurations from files. Any goroutine may use it.
type Source struct {
	files Files
	now   func() time.Time

	faults atomic.Pointer[[]string] // of the last reading; nil: none

	mu    sync.Mutex // held while the files are read, so that the newest wins
	pair  pair
	roots roots
}

// pair is a certificate with its key, and the bytes that it was made from.
type pair struct {
	cert, key []byte
	made      *tls.Certificate // nil: none
}

// roots are the authorities, and the bytes that they were made from.
type roots struct {
	pem      []byte
	certs    []*x509.Certificate
	pool     *x509.CertPool // nil: the system's
	notAfter time.Time      // the earliest
}

// New reads the files once. It fails where one cannot be used; a certificate
// that has expired, or is not valid yet, is only reported: whether to accept it
// is the other end's to say, and its successor may be on its way.
func New(files Files) (*Source, error) {
	s := &Source{files: files, now: time.Now}
	if (files.Cert == "") != (files.Key == "") {
		return nil, fmt.Errorf("%s and %s: one is named without the other", s.name("cert_file"), s.name("key_file"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, errPair := s.readPair()
	r, errRoots := s.readRoots()
	if err := errors.Join(errRoots, errPair); err != nil {
		return nil, err
	}
	s.pair, s.roots = p, r
	invalid := s.pair.valid(s)
	s.keep(invalid)
	s.report(invalid)
	return s, nil
}

// Client returns a configuration for the next connection, from the files as
// they are now; a file that cannot be used is reported and what it last held is
// used. serverName is the name expected in the server's certificate; it is
// needed unless insecure is set, which checks nothing of the server.
func (s *Source) Client(serverName string, insecure bool) (*tls.Config, error) {
	if serverName == "" && !insecure {
		return nil, errors.New("tls: no server name to check the certificate against")
	}
	p, r := s.read()
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: serverName,
		RootCAs:    r.pool,
		//nolint:gosec // asked for by name, and warned of, in the configuration
		InsecureSkipVerify: insecure,
	}
	if p.made != nil {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			// Shown whatever authorities the server asks for: its refusal then
			// names the fault, while no certificate at all would not.
			return p.made, nil
		}
	}
	return conf, nil
}

// ClientBeside is as Client for a server that the system's authorities may vouch
// for as well as those of the CA file, and that is shown no certificate.
func (s *Source) ClientBeside() (*tls.Config, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the system's authorities: %w", err)
	}
	_, r := s.read()
	for _, c := range r.certs {
		pool.AddCert(c)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}, nil
}

// Server returns a configuration for a listener, which reads the files again
// for each connection. requireClientCert demands a certificate signed by the CA
// file's authorities; without such a file every connection is refused, since
// the system's authorities sign for everybody.
func (s *Source) Server(requireClientCert bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.forClient(requireClientCert)
		},
	}
}

func (s *Source) forClient(requireClientCert bool) (*tls.Config, error) {
	p, r := s.read()
	if p.made == nil {
		return nil, fmt.Errorf("%s: a server needs a certificate", s.name("cert_file"))
	}
	conf := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{*p.made},
		NextProtos:   []string{"h2", "http/1.1"},
		// A resumed session would not look at authorities that have changed.
		SessionTicketsDisabled: true,
	}
	if !requireClientCert {
		return conf, nil
	}
	if r.pool == nil {
		return nil, fmt.Errorf("%s: client certificates are demanded and nobody is named to sign them", s.name("ca_file"))
	}
	conf.ClientCAs, conf.ClientAuth = r.pool, tls.RequireAndVerifyClientCert
	return conf, nil
}

// NotAfter returns until when the certificate, and the first of the
// authorities to expire, are valid that a connection would use now; zero where
// there is no such file. It reads the files, since connections live for weeks
// and an alert on what the last one used would be as late.
func (s *Source) NotAfter() (cert, ca time.Time) {
	p, r := s.read()
	if p.made != nil {
		cert = p.made.Leaf.NotAfter
	}
	return cert, r.notAfter
}

// read returns what the files hold now, or last held where they are broken.
func (s *Source) read() (pair, roots) {
	s.mu.Lock()
	p, errPair := s.readPair()
	if errPair == nil {
		p, errPair = s.better(p)
	}
	r, errRoots := s.readRoots()
	if errPair == nil {
		s.pair = p
	}
	if errRoots == nil {
		s.roots = r
	}
	p, r = s.pair, s.roots
	errPair, errRoots = goingOn(errPair), goingOn(errRoots)
	if errPair == nil {
		errPair = p.valid(s)
	}
	s.keep(errPair, errRoots)
	s.mu.Unlock()

	s.report(errPair)
	s.report(errRoots)
	return p, r
}

func goingOn(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; going on with what was there before", err)
}

// keep remembers what is wrong with the files. s.mu is held.
func (s *Source) keep(errs ...error) {
	var texts []string
	for _, err := range errs {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	s.faults.Store(&texts)
}

// Faults says what was wrong with the files when they were last read: those that
// could not be used, for which the ones of before are in force, and a certificate
// that is not valid now. It reads nothing and waits for nobody.
func (s *Source) Faults() []string {
	if texts := s.faults.Load(); texts != nil {
		return slices.Clone(*texts)
	}
	return nil
}

// watchEvery is how often Watch reads the files. A mounted secret takes a minute to
// change.
const watchEvery = 30 * time.Second

// Watch reads the files now and then, until ctx ends: connections live for weeks,
// and Faults would tell of a file when the next one is made.
func (s *Source) Watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		_, _ = s.read()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// better refuses a new pair that is not valid now while the one in hand is.
func (s *Source) better(p pair) (pair, error) {
	if p.made == s.pair.made || s.pair.valid(s) != nil {
		return p, nil
	}
	if err := p.valid(s); err != nil {
		return s.pair, err
	}
	return p, nil
}

// valid says why the certificate is not valid now.
func (p pair) valid(s *Source) error {
	if p.made == nil {
		return nil
	}
	switch leaf, now := p.made.Leaf, s.now(); {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%s: the certificate expired at %s", s.file("cert_file", s.files.Cert), leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%s: the certificate is not valid before %s", s.file("cert_file", s.files.Cert), leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}

func (s *Source) report(err error) {
	if err != nil && s.files.Report != nil {
		s.files.Report(err)
	}
}

// readPair reads the pair, parsing only what has changed. s.mu is held.
func (s *Source) readPair() (pair, error) {
	if s.files.Cert == "" {
		return pair{}, nil
	}
	cert, err := readFile(s.files.Cert)
	if err != nil {
		return pair{}, fmt.Errorf("%s: %w", s.name("cert_file"), err)
	}
	key, err := readFile(s.files.Key)
	if err != nil {
		return pair{}, fmt.Errorf("%s: %w", s.name("key_file"), err)
	}
	if bytes.Equal(cert, s.pair.cert) && bytes.Equal(key, s.pair.key) {
		return s.pair, nil
	}
	made, err := s.parsePair(cert, key)
	if err != nil {
		return pair{}, err
	}
	return pair{cert: cert, key: key, made: made}, nil
}

// readRoots is as readPair, for the authorities.
func (s *Source) readRoots() (roots, error) {
	if s.files.CA == "" {
		return roots{}, nil
	}
	text, err := readFile(s.files.CA)
	if err != nil {
		return roots{}, fmt.Errorf("%s: %w", s.name("ca_file"), err)
	}
	if bytes.Equal(text, s.roots.pem) {
		return s.roots, nil
	}
	certs, err := certificates(text)
	if err != nil {
		return roots{}, fmt.Errorf("%s: %w", s.file("ca_file", s.files.CA), err)
	}
	r := roots{pem: text, certs: certs, pool: x509.NewCertPool(), notAfter: certs[0].NotAfter}
	for _, c := range certs {
		r.pool.AddCert(c)
		if c.NotAfter.Before(r.notAfter) {
			r.notAfter = c.NotAfter
		}
	}
	return r, nil
}

// name is the configuration's name of a key.
func (s *Source) name(key string) string {
	if s.files.Section == "" {
		return key
	}
	return s.files.Section + "." + key
}

func (s *Source) file(key, path string) string { return s.name(key) + ": " + path }
