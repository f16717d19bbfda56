// Command dns is CoreDNS with what a cluster needs of it, and nothing else: the
// whole of it would be linked with the clients of three clouds.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"       // to the bridge alone
	_ "github.com/coredns/coredns/plugin/errors"     // into the log
	_ "github.com/coredns/coredns/plugin/kubernetes" // services and pods
	_ "github.com/coredns/coredns/plugin/ready"      // for test/k8s/up
	_ "github.com/coredns/coredns/plugin/template"   // "no such name" for the rest of the world
)

func main() {
	dnsserver.Directives = []string{"bind", "ready", "errors", "template", "kubernetes"}
	coremain.Run()
}
