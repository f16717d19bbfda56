package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxBytes bounds a PEM file: a bundle of all public authorities is 250 KiB.
const maxBytes = 4 << 20

// readFile reads a whole regular file; its errors name it.
func readFile(name string) (_ []byte, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxBytes)
	}
	return text, nil
}

// certificates returns those of a PEM text, at least one. A block that cannot
// be read is an error: a bundle of which half counts would be a puzzle.
func certificates(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for number := 1; ; number++ {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM block %d is a %s, a CERTIFICATE is expected", number, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("PEM block %d: %w", number, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate in it")
	}
	if strings.Contains(string(text), "-----BEGIN") {
		return nil, fmt.Errorf("broken after PEM block %d", len(certs))
	}
	return certs, nil
}

// parsePair makes the pair; its errors say which of the two files is at fault.
func (s *Source) parsePair(cert, key []byte) (*tls.Certificate, error) {
	certName, keyName := s.file("cert_file", s.files.Cert), s.file("key_file", s.files.Key)
	if _, err := certificates(cert); err != nil {
		return nil, fmt.Errorf("%s: %w", certName, err)
	}
	if err := privateKey(key); err != nil {
		return nil, fmt.Errorf("%s: %w", keyName, err)
	}
	made, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certName, keyName, err)
	}
	if made.Leaf == nil { // filled in unless GODEBUG says otherwise
		if made.Leaf, err = x509.ParseCertificate(made.Certificate[0]); err != nil {
			return nil, fmt.Errorf("%s: %w", certName, err)
		}
	}
	return &made, nil
}

// privateKey says why a PEM text holds no key that can be used without a
// passphrase.
func privateKey(text []byte) error {
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		switch {
		case block == nil:
			return errors.New("no PEM private key in it")
		case block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED"):
			return errors.New("the private key is encrypted; one without a passphrase is needed")
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return nil
		}
	}
}
