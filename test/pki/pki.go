// Package pki makes the certificates of the tests: an authority, and what it
// signs for brokers, clients and pods, written so that a reader sees the old
// file or the new one and never half of one.
//
// It must never be imported by the service: its authorities' keys lie in files.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// clockSkew is how far a certificate's validity reaches into the past.
const clockSkew = time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key (PKCS #8), both in PEM.
type Pair struct {
	Cert, Key []byte
}

// Request says what is to be signed.
type Request struct {
	// Name is the subject's common name, which brokers take for the principal.
	Name string
	// Hosts are the names and addresses of a server's certificate; without any
	// the certificate is a client's.
	Hosts []string
	// Validity is how long from now it is valid; 0 is a day. A negative one
	// makes a certificate that has expired.
	Validity time.Duration
}

// NewAuthority makes an authority with a key of its own, valid for ten days.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", name, err)
	}
	template, err := template(name, 10*24*time.Hour)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading %s back: %w", name, err)
	}
	return &Authority{cert, key}, nil
}

// Load reads an authority from the files that Pair().Write has written.
func Load(certFile, keyFile string) (*Authority, error) {
	certDER, err := readBlock(certFile)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	keyDER, err := readBlock(keyFile)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: a %T, not an elliptic-curve key", keyFile, parsed)
	}
	return &Authority{cert, key}, nil
}

func readBlock(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM block", file)
	}
	return block.Bytes, nil
}

// PEM is the authority's certificate: what those who trust it hold.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Pair is the authority itself, for Load.
func (a *Authority) Pair() (Pair, error) { return pair(a.cert.Raw, a.key) }

// Issue signs a new key for the request.
func (a *Authority) Issue(r Request) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making the key of %s: %w", r.Name, err)
	}
	validity := r.Validity
	if validity == 0 {
		validity = 24 * time.Hour
	}
	template, err := template(r.Name, validity)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(r.Hosts) > 0 {
		// Brokers are each other's clients too.
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing %s: %w", r.Name, err)
	}
	return pair(der, key)
}

func template(name string, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("numbering %s: %w", name, err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-clockSkew + min(validity, 0)),
		NotAfter:     now.Add(validity),
	}, nil
}

func pair(certDER []byte, key *ecdsa.PrivateKey) (Pair, error) {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return Pair{Cert: encode("CERTIFICATE", certDER), Key: encode("PRIVATE KEY", keyDER)}, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Write replaces both files, the key first: between the two a reader may find
// a pair that does not belong together, as with anybody's rotation.
func (p Pair) Write(certFile, keyFile string) error {
	return errors.Join(Replace(keyFile, p.Key), Replace(certFile, p.Cert))
}

// Replace puts a file in another's place at once; only its owner may read it.
func Replace(file string, content []byte) error {
	part, err := os.CreateTemp(filepath.Dir(file), ".part-*")
	if err != nil {
		return err
	}
	_, err = part.Write(content)
	err = errors.Join(err, part.Close())
	if err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return nil
}
