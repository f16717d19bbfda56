// Command secure is the part of a secured test cluster (test/kafka/up --secure)
// that is not Kafka's: it makes the certificates and passwords, and it is the
// token endpoint of the OAUTHBEARER listener.
//
//	secure make DIR       makes what is missing in DIR
//	secure serve DIR      the token endpoint, until it is signalled
//
// It must never be used outside tests: what it makes lies unprotected in DIR.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "secure:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("secure", flag.ContinueOnError)
	address := flags.String("address", "127.0.0.1", "address that brokers have for clients")
	plain := flags.String("http", "127.0.0.1:0", "address of the endpoint without TLS")
	encrypted := flags.String("https", "127.0.0.1:0", "address of the endpoint with TLS")
	lifetime := flags.Duration("lifetime", defaultLifetime, "how long a token is valid")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("usage: secure [flag…] make|serve DIR")
	}
	dir := flags.Arg(1)
	switch flags.Arg(0) {
	case "make":
		return makeAll(dir, *address)
	case "serve":
		return serve(ctx, dir, *plain, *encrypted, *lifetime)
	}
	return fmt.Errorf("unknown action %q: make or serve", flags.Arg(0))
}
