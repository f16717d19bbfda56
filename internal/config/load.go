package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Options says where Load looks.
type Options struct {
	// Path is the configuration file. Empty: none.
	Path string
	// Explicit says that somebody asked for Path: then it must exist.
	Explicit bool
	// Flags holds the flags of AddFlags, parsed. Nil: none.
	Flags *pflag.FlagSet
	// Environ is the environment, as os.Environ returns it. Nil: empty.
	// It is handed in, and not asked of the process, so that Load depends on
	// its arguments and the file system only.
	Environ []string
}

// Loaded is a configuration and where it came from.
type Loaded struct {
	Config
	// Path is the file that was read, empty where there was none.
	Path string
	// Warnings are for people: variables that name no key, values without
	// effect.
	Warnings []string

	// sources says by key where it was set: "config.yaml:12",
	// "JOINER_GROUP_ID", "--set"; a key that is missing has its default.
	sources map[string]string
}

// Load reads the configuration from its sources and checks it. The error is
// Faults, with everything that is wrong at once; the configuration comes with
// it as far as it could be read (what could not be read keeps its default).
func Load(o Options) (*Loaded, error) {
	loaded := &Loaded{Config: Default(), sources: map[string]string{}}
	l := &loader{
		loaded: loaded,
		schema: newSchema(&loaded.Config),
		viper:  viper.New(),
	}
	l.file(o)
	l.environment(o.Environ)
	l.flags(o.Flags)
	l.decode()
	l.check()
	return loaded, l.faults.err()
}

// loader fills a Loaded, the layer of the lowest precedence first.
type loader struct {
	loaded *Loaded
	schema schema
	viper  *viper.Viper
	faults Faults
}

func (l *loader) file(o Options) {
	if o.Path == "" {
		if o.Explicit {
			l.faults = append(l.faults, Fault{Problem: "the name of the configuration file is empty", Cure: "name one"})
		}
		return
	}
	text, err := readConfig(o.Path)
	if errors.Is(err, fs.ErrNotExist) && !o.Explicit {
		return
	}
	if err != nil {
		l.faults = append(l.faults, Fault{Problem: "cannot read the configuration file: " + err.Error(), Cure: "name a file that exists and may be read"})
		return
	}
	l.loaded.Path = o.Path
	d := &document{name: o.Path, schema: l.schema, set: l.set}
	d.read(text)
	l.faults = append(l.faults, d.faults...)
}

// maxConfigBytes bounds the configuration; the documented default is 8 KiB.
const maxConfigBytes = 1 << 20

// readConfig reads a file, which may be a pipe but not go on for ever.
func readConfig(path string) (_ []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxConfigBytes)
	}
	return text, nil
}

func (l *loader) environment(environ []string) {
	settings, warnings := envSettings(l.schema, environ)
	l.loaded.Warnings = append(l.loaded.Warnings, warnings...)
	l.apply(settings)
}

func (l *loader) flags(flags *pflag.FlagSet) {
	settings, faults := flagSettings(flags)
	l.faults = append(l.faults, faults...)
	l.apply(settings)
}

func (l *loader) apply(settings []setting) {
	for _, s := range settings {
		f, ok := l.schema.byKey[s.key]
		if !ok {
			l.faults = append(l.faults, l.schema.unknown(s.key, s.source))
			continue
		}
		if f.group {
			wrong := &problem{"is a section", "set one of the keys in it"}
			l.faults = append(l.faults, wrong.at(s.key, s.source))
			continue
		}
		value, wrong := parse(f, s.text)
		if wrong != nil {
			l.faults = append(l.faults, wrong.at(s.key, s.source))
			continue
		}
		l.set(f, value, s.source)
	}
}

// set is called in order of rising precedence, and the last call wins.
func (l *loader) set(f field, value any, source string) {
	l.viper.Set(f.key, value)
	l.loaded.sources[f.key] = source
}

// decode moves what was set into the struct, exactly: a key that the struct
// does not have, or a value of another type, is a mistake of this package.
func (l *loader) decode() {
	strict := func(c *mapstructure.DecoderConfig) {
		c.WeaklyTypedInput = false
		c.ZeroFields = true // a list replaces the default's elements
		c.DecodeHook = nil
	}
	if err := l.viper.UnmarshalExact(&l.loaded.Config, strict); err != nil {
		l.faults = append(l.faults, Fault{Problem: fmt.Sprintf("cannot decode the configuration: %v", err)})
	}
	if _, set := l.loaded.sources["delivery.commit_interval"]; !set && l.loaded.Delivery.Guarantee == ExactlyOnce {
		l.loaded.Delivery.CommitInterval = exactlyOnceCommitInterval
	}
}

// check adds what the values themselves have wrong. A key whose value could
// not even be read is not judged by its default.
func (l *loader) check() {
	unread := map[string]bool{}
	for _, key := range l.faults.Keys() {
		unread[key] = true
	}
	for _, f := range l.loaded.faults() {
		if unread[f.Key] {
			continue
		}
		f.Source = l.loaded.sources[withoutIndex(f.Key)]
		l.faults = append(l.faults, f)
	}
	l.faults.sortByKey(l.schema.order)
	l.loaded.Warnings = append(l.loaded.Warnings, l.loaded.warnings()...)
}
