// Command agents is what a node runs, and the controllers that give it work, in
// one binary, which is linked once: kube-controller-manager, kube-scheduler,
// kubelet and kube-proxy, told apart by the name it is called by.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // the machine may have no time zones, which CronJobs ask for

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // the log format
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	command := server(name)
	if command == nil {
		fmt.Fprintf(os.Stderr, "%s: call me kubelet, kube-proxy, kube-scheduler or kube-controller-manager\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

func server(name string) *cobra.Command {
	switch name {
	case "kube-controller-manager":
		return controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	}
	return nil
}
