package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set when a release is linked: -ldflags "-X main.version=v1.2.3 -X
// main.commit=0123abc". The linker can set nothing but a package's variables;
// nothing else writes to them.
var version, commit string

// build says what this binary was made of.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	Sarama  string `json:"sarama"`
}

const saramaModule = "github.com/IBM/sarama"

// thisBuild describes the running binary.
func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(version, commit, info)
}

// describe fills in from the build information what the linker was not told:
// go install and go build leave the module's version and the commit there.
func describe(version, commit string, info *debug.BuildInfo) build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Sarama: "unknown"}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if b.Commit == "" {
		b.Commit = revision(info.Settings)
	}
	for _, module := range info.Deps {
		if module.Path != saramaModule {
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		b.Sarama = module.Version
	}
	return b
}

func revision(settings []debug.BuildSetting) string {
	of, changed := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			of = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "-dirty"
		}
	}
	return of + changed
}

func newVersion(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of joiner, Go and sarama",
		Args:  cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	cmd.RunE = func(*cobra.Command, []string) error {
		b := thisBuild()
		if out.json() {
			return json.NewEncoder(p.stdout).Encode(b)
		}
		_, err := fmt.Fprintf(p.stdout, "joiner  %s\ncommit  %s\ngo      %s\nsarama  %s\n", b.Version, b.Commit, b.Go, b.Sarama)
		return err
	}
	return cmd
}
