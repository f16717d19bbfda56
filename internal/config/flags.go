package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

const setFlag = "set"

// namedFlag is a flag for a key that people set often.
type namedFlag struct{ name, key, usage string }

// namedFlags is the list of them. Every other key is reached by --set.
func namedFlags() []namedFlag {
	return []namedFlag{
		{"brokers", "kafka.brokers", "bootstrap servers, host:port, separated by commas"},
		{"group-id", "group.id", "consumer group"},
		{"http-listen", "http.listen", "address of probes and metrics"},
		{"log-level", "log.level", "debug, info, warn, error"},
		{"log-format", "log.format", "json, console"},
	}
}

// AddFlags adds the flags that set configuration keys: --set key=value for any
// key, repeatable, and flags with a name of their own for the common ones.
// Load reads those that were given.
func AddFlags(flags *pflag.FlagSet) {
	flags.StringArray(setFlag, nil, "set any configuration `key=value`, repeatable; lists with commas")
	for _, f := range namedFlags() {
		flags.String(f.name, "", fmt.Sprintf("%s (%s)", f.usage, f.key))
	}
}

// setting is a value that a flag or the environment gives to a key.
type setting struct{ key, text, source string }

// flagSettings returns what the given flags set, in order of rising
// precedence: a flag with a name of its own wins over --set.
func flagSettings(flags *pflag.FlagSet) ([]setting, Faults) {
	if flags == nil {
		return nil, nil
	}
	settings, faults := setFlagSettings(flags)
	for _, named := range namedFlags() {
		if f := flags.Lookup(named.name); f != nil && f.Changed {
			settings = append(settings, setting{named.key, f.Value.String(), "--" + named.name})
		}
	}
	return settings, faults
}

func setFlagSettings(flags *pflag.FlagSet) ([]setting, Faults) {
	if flags.Lookup(setFlag) == nil {
		return nil, nil
	}
	given, err := flags.GetStringArray(setFlag)
	if err != nil {
		return nil, Faults{{Problem: err.Error(), Source: "--" + setFlag}}
	}
	var settings []setting
	var faults Faults
	for _, pair := range given {
		key, text, ok := strings.Cut(pair, "=")
		if !ok {
			faults = append(faults, Fault{Key: key, Problem: "--set without a value", Cure: "write --set " + key + "=VALUE", Source: "--" + setFlag})
			continue
		}
		settings = append(settings, setting{key, text, "--" + setFlag})
	}
	return settings, faults
}
