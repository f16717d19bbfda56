package config

import "fmt"

// Redacted is what stands for a secret wherever a configuration is shown.
const Redacted = "<redacted>"

// Secret is a text that shows itself to nobody: printed by any verb, logged or
// marshalled it is [Redacted] (empty where it is empty, so that one can see
// whether it is set). Only Reveal returns it.
type Secret string

// Reveal returns the secret itself. Never log or print what it returns.
func (s Secret) Reveal() string { return string(s) }

// String returns Redacted, or nothing where there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// Format covers every verb, %q, %x and %#v among them, which would otherwise
// reach the text underneath.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || (verb == 'v' && f.Flag('#')) {
		fmt.Fprintf(f, "%q", s.String())
		return
	}
	fmt.Fprint(f, s.String())
}

// MarshalText serves JSON, and whatever else asks a value for its text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML serves YAML.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }
