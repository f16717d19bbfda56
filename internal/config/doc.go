// Package config is the typed configuration of joiner: every key, its default,
// where values come from and whether they make sense together.
//
// # How to use it
//
//	config.AddFlags(flags)
//	loaded, err := config.Load(config.Options{Path: "config.yaml", Flags: flags, Environ: os.Environ()})
//	var faults config.Faults
//	if errors.As(err, &faults) { … every fault at once, each with its key and its cure … }
//
// # Where a value comes from
//
// Flags win over the environment, the environment over the file, the file over
// the defaults. A list replaces the list below it, nothing is merged into it.
// Every source is read as text and by the same parser, so that a value means
// the same wherever it stands: a duration has a unit, a list may be written
// with commas.
//
// The struct [Config] is the only list of keys: its tags carry the name, the
// meaning and the permitted words, and the environment's names, the documented
// default file, the checks of words and the suggestions for misspelt keys are
// all derived by walking it. A key added there exists everywhere.
//
// # What it must never do
//
// It must never import another package of this project, talk to Kafka, open a
// listener or log. Only the application and the command line import it; rooms
// take options of their own. It must never print a secret: [Secret] redacts
// itself, and no fault quotes one.
package config
