// Command control is etcd, Kubernetes' API server and kubectl in one binary,
// which is linked once; the name it is called by says which of them it is. That
// is all that the validation of objects needs.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // the machine may have no time zones, which CronJobs ask for

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // as the real kubectl has it
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register" // the log format
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kubectl":
		kubectl()
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s: call me etcd, kubectl or kube-apiserver\n", name)
		os.Exit(2)
	}
}

func kubectl() {
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args)) // a wrong -v is told by the command itself
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // ends with kubectl's own exit code
	}
}
