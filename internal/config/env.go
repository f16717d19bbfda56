package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// envSettings returns what the environment sets, and a warning for each
// variable that has our prefix and names no key.
//
// Every known key is looked for by its own name, so it does not matter
// whether a file or a default mentions it. A variable that is set but empty
// sets its key to nothing: it is the only way to say topics.dead_letters: ""
// there.
func envSettings(s schema, environ []string) ([]setting, []string) {
	byName := make(map[string]string, len(s.keys))
	for _, key := range s.keys {
		byName[EnvName(key)] = key
	}
	var settings []setting
	var unknown []string
	for _, pair := range environ {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		if key, known := byName[name]; known {
			settings = append(settings, setting{key, text, name})
			continue
		}
		if !serviceVariable().MatchString(name) {
			unknown = append(unknown, s.unknownVariable(name))
		}
	}
	slices.Sort(unknown)
	return settings, unknown
}

// unknownVariable warns of a variable. It is no fault: the environment is
// shared with others, a file is ours alone.
func (s schema) unknownVariable(name string) string {
	warning := fmt.Sprintf("environment variable %s names no configuration key and is ignored", name)
	best, distance := "", 1+len(name)/5
	for _, key := range s.keys {
		if d := editDistance(name, EnvName(key)); d < distance {
			best, distance = EnvName(key), d
		}
	}
	if best != "" {
		warning += fmt.Sprintf("; did you mean %s?", best)
	}
	return warning
}

// serviceVariable matches what Kubernetes puts into every container for a
// service named joiner or joiner-something.
func serviceVariable() *regexp.Regexp {
	return regexp.MustCompile(`^JOINER_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)
}
