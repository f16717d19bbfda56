package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// files checks that every file named can be read, now: a service that finds
// out when it connects again fails hours after the mistake. A file is checked
// wherever it is named, also where its feature is off.
func (f *checker) files() {
	c := f.config
	f.readable("kafka.tls.ca_file", c.Kafka.TLS.CAFile)
	f.readable("kafka.tls.cert_file", c.Kafka.TLS.CertFile)
	f.readable("kafka.tls.key_file", c.Kafka.TLS.KeyFile)
	f.readable("peer.tls.ca_file", c.Peer.TLS.CAFile)
	f.readable("peer.tls.cert_file", c.Peer.TLS.CertFile)
	f.readable("peer.tls.key_file", c.Peer.TLS.KeyFile)
	f.secretFile("kafka.sasl.password_file", c.Kafka.SASL.PasswordFile)
	f.secretFile("kafka.sasl.client_secret_file", c.Kafka.SASL.ClientSecretFile)
	f.secretFile("peer.token_file", c.Peer.TokenFile)
	f.stateDir()
	f.reserved()
}

const fileCure = "name a file that exists and may be read"

func (f *checker) readable(key, file string) {
	if file == "" {
		return
	}
	if _, err := readBounded(file, maxSymbolsBytes); err != nil {
		f.add(key, err.Error(), fileCure)
	}
}

func (f *checker) secretFile(key, file string) {
	if _, err := readSecret("", file); err != nil {
		f.add(key, err.Error(), "name a file that exists, may be read and holds the secret")
	}
}

// stateDir need not exist yet, but must not be something else.
func (f *checker) stateDir() {
	dir := f.config.State.Dir
	if dir == "" {
		return
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		f.add("state.dir", dir+" is not a directory", "name a directory that this process may write to")
	}
	if !filepath.IsAbs(dir) {
		f.add("state.dir", fmt.Sprintf("%q depends on where the process was started", dir), "write the whole path")
	}
}

func (f *checker) reserved() {
	partitions := map[int32]bool{}
	owner := map[string]string{}
	for i, r := range f.config.Topics.Reserved {
		entry := fmt.Sprintf("topics.reserved[%d]", i)
		switch {
		case r.Partition < 0:
			f.add(entry+".partition", fmt.Sprintf("%d is no partition", r.Partition), "write 0 or more")
		case partitions[r.Partition]:
			f.add(entry+".partition", fmt.Sprintf("partition %d is reserved twice", r.Partition), "put its symbols into one file")
		}
		partitions[r.Partition] = true
		f.symbolsFile(entry+".symbols_file", r, owner)
	}
}

// symbolsFile reads the file of one entry; owner knows the symbols of those
// before it.
func (f *checker) symbolsFile(key string, r Reserved, owner map[string]string) {
	if r.SymbolsFile == "" {
		f.add(key, "is empty", "name a file with one symbol a line")
		return
	}
	symbols, err := r.Symbols()
	if err != nil {
		f.add(key, err.Error(), "name a file that may be read, with one symbol a line")
		return
	}
	for _, symbol := range symbols {
		if other, twice := owner[string(symbol)]; twice && other != r.SymbolsFile {
			f.add(key, fmt.Sprintf("symbol %q is also in %s", symbol, other), "keep it in one of the two")
			return // one is enough to find the others
		}
		owner[string(symbol)] = r.SymbolsFile
	}
}

// relations checks keys against each other.
func (f *checker) relations() {
	f.groupTimes()
	f.remoteTimes()
	f.exclusive()
	f.certificates()
	f.sasl()
	f.token()
	f.listeners()
}

func (f *checker) groupTimes() {
	g := f.config.Group
	if least := 3 * g.HeartbeatInterval; g.HeartbeatInterval > 0 && g.SessionTimeout < least {
		f.add("group.session_timeout",
			fmt.Sprintf("%s is less than three heartbeats (group.heartbeat_interval %s)", formatDuration(g.SessionTimeout), formatDuration(g.HeartbeatInterval)),
			fmt.Sprintf("write %s or more, or a shorter heartbeat: one lost heartbeat must not cost the partitions", formatDuration(least)))
	}
	if g.RebalanceTimeout <= g.HeartbeatInterval {
		f.add("group.rebalance_timeout",
			fmt.Sprintf("%s is not longer than a heartbeat (group.heartbeat_interval %s)", formatDuration(g.RebalanceTimeout), formatDuration(g.HeartbeatInterval)),
			"write more: a member hears of a rebalance with its next heartbeat")
	}
}

func (f *checker) remoteTimes() {
	j, session := f.config.Join, f.config.Group.SessionTimeout
	if session > 0 && j.RemoteTimeout >= session {
		f.add("join.remote_timeout",
			fmt.Sprintf("%s is not less than group.session_timeout (%s)", formatDuration(j.RemoteTimeout), formatDuration(session)),
			"write less: an answer that took longer might be of an owner that is none any more")
	}
	if j.RemotePatience > 0 && j.RemotePatience < j.RemoteTimeout {
		f.add("join.remote_patience",
			fmt.Sprintf("%s is less than one attempt (join.remote_timeout %s)", formatDuration(j.RemotePatience), formatDuration(j.RemoteTimeout)),
			"write "+formatDuration(j.RemoteTimeout)+" or more")
	}
}

// exclusive refuses a secret beside the file that holds it: one of the two is
// a leftover, and nobody can know which.
func (f *checker) exclusive() {
	s, p := f.config.Kafka.SASL, f.config.Peer
	for _, pair := range []struct {
		key   string
		value Secret
		file  string
	}{
		{"kafka.sasl.password", s.Password, s.PasswordFile},
		{"kafka.sasl.client_secret", s.ClientSecret, s.ClientSecretFile},
		{"peer.token", p.Token, p.TokenFile},
	} {
		if pair.value != "" && pair.file != "" {
			f.add(pair.key, "is set together with "+pair.key+"_file", "keep one of the two")
		}
	}
}

func (f *checker) certificates() {
	k, p := f.config.Kafka.TLS, f.config.Peer.TLS
	f.certificate("kafka.tls", k.CertFile, k.KeyFile)
	f.certificate("peer.tls", p.CertFile, p.KeyFile)
	if p.Enabled && p.CertFile == "" && p.KeyFile == "" {
		f.add("peer.tls.cert_file", "is empty while peer.tls.enabled is true", "name the certificate that this pod shows, and its key")
	}
	if p.ClientAuth && p.CAFile == "" {
		f.add("peer.tls.ca_file", "is empty while peer.tls.client_auth is true", "name the authorities that sign the pods' certificates")
	}
}

func (f *checker) certificate(section, cert, key string) {
	switch {
	case cert != "" && key == "":
		f.add(section+".key_file", "is empty while "+section+".cert_file is set", "name the certificate's key, or leave both out")
	case cert == "" && key != "":
		f.add(section+".cert_file", "is empty while "+section+".key_file is set", "name the key's certificate, or leave both out")
	}
}

func (f *checker) sasl() {
	s := f.config.Kafka.SASL
	f.oneLine("kafka.sasl.username", s.Username)
	f.oneLine("kafka.sasl.client_id", s.ClientID)
	switch s.Mechanism {
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		f.wanted("kafka.sasl.username", s.Username == "", s.Mechanism)
		f.wanted("kafka.sasl.password_file", s.Password == "" && s.PasswordFile == "", s.Mechanism)
	case "OAUTHBEARER":
		f.wanted("kafka.sasl.token_url", s.TokenURL == "", s.Mechanism)
		f.wanted("kafka.sasl.client_id", s.ClientID == "", s.Mechanism)
		f.wanted("kafka.sasl.client_secret_file", s.ClientSecret == "" && s.ClientSecretFile == "", s.Mechanism)
	}
}

// oneLine: a name that comes out of a file by way of the environment keeps the
// line end that a secret's file may have, and brokers say no more than that they
// do not know the user.
func (f *checker) oneLine(key, name string) {
	if strings.ContainsAny(name, "\r\n") {
		f.add(key, "has a line end in it", "take it out: of a Secret or file, the whole text counts (printf rather than echo)")
	}
}

func (f *checker) wanted(key string, missing bool, mechanism string) {
	if missing {
		f.add(key, "is empty while kafka.sasl.mechanism is "+mechanism, "set it: "+mechanism+" needs it")
	}
}

func (f *checker) token() {
	p := f.config.Peer
	if p.TLS.Enabled {
		return
	}
	const what, cure = "a token without TLS would cross the network in the clear", "leave it out, or set peer.tls.enabled: true"
	if p.Token != "" {
		f.add("peer.token", what, cure)
	}
	if p.TokenFile != "" {
		f.add("peer.token_file", what, cure)
	}
}

// listeners refuses two on one port: the second could not start. Port 0 is a
// different one each time.
func (f *checker) listeners() {
	first := map[string]string{}
	for _, l := range []struct{ key, address string }{
		{"http.listen", f.config.HTTP.Listen},
		{"http.pprof_listen", f.config.HTTP.PprofListen},
		{"peer.listen", f.config.Peer.Listen},
	} {
		_, port, err := net.SplitHostPort(l.address)
		if err != nil || port == "0" {
			continue
		}
		if other, taken := first[l.address]; taken {
			f.add(l.key, fmt.Sprintf("%s is also %s", l.address, other), "give each a port of its own")
			continue
		}
		first[l.address] = l.key
	}
}

// warnings names what is set and has no effect, where somebody may believe
// that it has.
func (c *Config) warnings() []string {
	var out []string
	warn := func(text string) { out = append(out, text) }
	t, s, p := c.Kafka.TLS, c.Kafka.SASL, c.Peer.TLS
	if !t.Enabled && (t != KafkaTLS{}) {
		warn("kafka.tls has no effect while kafka.tls.enabled is false: connections to brokers are not encrypted")
	}
	if s.Mechanism == "" && (s.Username != "" || s.Password != "" || s.PasswordFile != "" || s.TokenURL != "" || s.ClientID != "" || s.ClientSecret != "" || s.ClientSecretFile != "") {
		warn("kafka.sasl has no effect while kafka.sasl.mechanism is empty")
	}
	if t.Enabled && t.InsecureSkipVerify {
		warn("kafka.tls.insecure_skip_verify: anybody can pose as a broker, and take what this client sends")
	}
	if s.Mechanism == "PLAIN" && !t.Enabled {
		warn("kafka.sasl.mechanism: PLAIN without kafka.tls.enabled sends the password in the clear")
	}
	if s.Mechanism == "OAUTHBEARER" && !t.Enabled {
		warn("kafka.sasl.mechanism: OAUTHBEARER without kafka.tls.enabled sends tokens in the clear")
	}
	if s.Mechanism == "OAUTHBEARER" && strings.HasPrefix(strings.ToLower(s.TokenURL), "http://") {
		warn("kafka.sasl.token_url: an http address gets the client secret in the clear")
	}
	if !p.Enabled && (p != PeerTLS{}) {
		warn("peer.tls has no effect while peer.tls.enabled is false")
	}
	if p.Enabled && p.CAFile == "" && len(c.Peer.AllowedNames) == 0 && (c.Peer.Token != "" || c.Peer.TokenFile != "") {
		warn("peer.token is shown to whatever address a member of the group advertises, if that has a certificate which the system trusts: name the pods' own authorities in peer.tls.ca_file, or the pods in peer.allowed_names")
	}
	if c.Topics.ReplicationFactor != -1 && !c.Topics.Create {
		warn("topics.replication_factor has no effect while topics.create is false")
	}
	if len(c.Topics.Reserved) > 0 && c.Topics.MarketPartitioner() == partitionerCustom && c.Topics.NotificationPartitioner() == partitionerCustom {
		warn("topics.reserved has no effect under the custom partitioner: placement is not judged")
	}
	if c.Topics.DeadLetters == "" && (c.Join.OnMiss == "dead_letter" || c.Join.OnUnavailable == "dead_letter") {
		warn("join.on_miss and join.on_unavailable: dead_letter drops notifications while topics.dead_letters is empty")
	}
	return out
}
