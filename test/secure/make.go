package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"joiner/test/pki"
)

// The files of a secured cluster's directory.
const (
	caCert     = "ca.pem"
	caKey      = "ca.key"
	brokerCert = "broker.pem"
	brokerKey  = "broker.key"
	keystore   = "keystore.pem" // the broker's key and certificate in one, as Kafka wants them
	clientCert = "client.pem"
	clientKey  = "client.key"
	clients    = "clients" // the token endpoint's: an id and a secret a line
)

// user is the name of the principal on every listener that knows one.
const user = "joiner"

// passwords are made one each; password and client_secret are the user's own.
var passwords = []string{"broker.password", "admin.password", "password", "client_secret"}

// makeAll makes what is missing, so that a cluster that was kept goes on with
// what it had. Brokers are at this address for their clients.
func makeAll(dir, address string) error {
	if _, err := os.Stat(filepath.Join(dir, clients)); err == nil {
		return nil // it is written last
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := makeCertificates(dir, address); err != nil {
		return err
	}
	made := make(map[string]string, len(passwords))
	for _, name := range passwords {
		made[name] = secret()
		if err := pki.Replace(filepath.Join(dir, name), []byte(made[name]+"\n")); err != nil {
			return err
		}
	}
	line := fmt.Sprintf("%s %s\n", user, made["client_secret"])
	return pki.Replace(filepath.Join(dir, clients), []byte(line))
}

func makeCertificates(dir, address string) error {
	authority, err := pki.NewAuthority("joiner test authority")
	if err != nil {
		return err
	}
	own, err := authority.Pair()
	if err != nil {
		return err
	}
	broker, err := authority.Issue(pki.Request{Name: "broker", Hosts: []string{"127.0.0.1", "localhost", address}})
	if err != nil {
		return err
	}
	client, err := authority.Issue(pki.Request{Name: user})
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	return errors.Join(
		own.Write(at(caCert), at(caKey)),
		broker.Write(at(brokerCert), at(brokerKey)),
		pki.Replace(at(keystore), append(broker.Key, broker.Cert...)),
		client.Write(at(clientCert), at(clientKey)),
	)
}

// secret is long enough to occur nowhere by chance.
func secret() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	return hex.EncodeToString(random)
}
