package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxSecretBytes bounds a secret's file; a token of OAuth is a few KiB.
const maxSecretBytes = 64 << 10

// maxSymbolsBytes bounds a file of symbols: about a million of them.
const maxSymbolsBytes = 16 << 20

// ReadPassword returns the password: the one given, or what password_file
// holds now. Call it for each new connection, so that a rotated file is seen.
func (s SASL) ReadPassword() (Secret, error) { return readSecret(s.Password, s.PasswordFile) }

// ReadClientSecret is as ReadPassword, for client_secret.
func (s SASL) ReadClientSecret() (Secret, error) {
	return readSecret(s.ClientSecret, s.ClientSecretFile)
}

// ReadToken is as SASL.ReadPassword, for token.
func (p Peer) ReadToken() (Secret, error) { return readSecret(p.Token, p.TokenFile) }

func readSecret(given Secret, file string) (Secret, error) {
	if file == "" {
		return given, nil
	}
	text, err := readBounded(file, maxSecretBytes)
	if err != nil {
		return "", err
	}
	secret := withoutNewline(text)
	if len(secret) == 0 {
		return "", fmt.Errorf("%s is empty", file)
	}
	return Secret(secret), nil
}

// withoutNewline removes one trailing line end, which editors and echo leave.
// Any further one belongs to the secret.
func withoutNewline(text []byte) []byte {
	text, found := bytes.CutSuffix(text, []byte("\n"))
	if found {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	return text
}

// Symbols reads the symbols that the partition is kept for: the lines of the
// file, byte for byte, empty ones left out. A symbol written twice, or a file
// without any, is an error that names the line or the file.
func (r Reserved) Symbols() ([][]byte, error) {
	text, err := readBounded(r.SymbolsFile, maxSymbolsBytes)
	if err != nil {
		return nil, err
	}
	var symbols [][]byte
	first := map[string]int{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		symbol := withoutNewline(line)
		if len(symbol) == 0 {
			continue
		}
		if before, twice := first[string(symbol)]; twice {
			return nil, fmt.Errorf("%s:%d: symbol %q is already in line %d", r.SymbolsFile, number, symbol, before)
		}
		first[string(symbol)] = number
		symbols = append(symbols, symbol)
	}
	if len(symbols) == 0 {
		return nil, fmt.Errorf("%s holds no symbol", r.SymbolsFile)
	}
	return symbols, nil
}

// readBounded reads a whole file that is expected to be small. It must be a
// regular file: a pipe would be empty when it is read again, and may block.
func readBounded(name string, most int64) (_ []byte, err error) {
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
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return text, nil
}
