package k8s

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
	"joiner/test/pki"
)

// Everything encrypted and everybody known, out of secrets as people make them: a
// password whose file ends with a newline, brokers by SCRAM over TLS, requests
// between pods by mutual TLS with a token. Placed by round-robin, every price has
// to cross the network. Then the password is replaced under the running pods.
func secured(t *testing.T, s *stage) {
	c := cluster.Start(t, cluster.Options{Brokers: 1, Secure: true, Address: hostAddress})
	r := (&stage{Cluster: c, image: s.image, joiner: s.joiner}).release(t, "secured")
	r.settings["kafka.sasl.mechanism"] = "PLAIN"
	r.settings["kafka.sasl.username"] = "admin"
	r.settings["kafka.sasl.password_file"] = c.Secure.File("admin.password")
	r.allowed()
	r.secrets()
	r.install("--set", "replicaCount=4", "--set", "preflight.enabled=true",
		"--set", "config.group.strategy=roundrobin",
		"--set", "kafka.brokers={"+strings.Join(c.Secure.Listeners[cluster.ListenerSCRAM512], "\\,")+"}",
		"--set", "kafka.existingSecret=kafka", "--set", "kafka.tls.enabled=true",
		"--set", "kafka.sasl.mechanism=SCRAM-SHA-512", "--set", "kafka.sasl.username="+cluster.SecureUser,
		"--set", "peer.existingSecret=peers", "--set", "peer.tokenKey=token", "--set", "peer.tls.enabled=true",
		"--set", "config.peer.allowed_names={*."+r.name+"-headless."+r.name+".svc}")
	pods := r.awaitReady(4)
	r.thirty(pods, 0)
	for _, p := range pods {
		if n := r.metrics(p).Sum("joiner_tls_certificate_not_after_timestamp_seconds", "use", "peer"); n == 0 {
			t.Errorf("%s does not tell until when its certificate is valid", p.name())
		}
	}
	r.newPassword(pods)
}

// allowed lets the joiner's user do what it likes with the topics and the group.
// Which rights it needs is tested elsewhere, one by one.
func (r *release) allowed() {
	r.t.Helper()
	principal := "User:" + cluster.SecureUser
	acls := []cluster.ACL{{Principal: principal, Type: sarama.AclResourceGroup, Name: r.name, Operation: sarama.AclOperationAll}}
	for _, topic := range r.topics {
		acls = append(acls, cluster.ACL{Principal: principal, Type: sarama.AclResourceTopic, Name: topic, Operation: sarama.AclOperationAll})
	}
	r.Allow(r.t, acls...)
}

// secrets makes those of the brokers and those of the pods, which have an
// authority of their own.
func (r *release) secrets() {
	r.t.Helper()
	password, err := os.ReadFile(r.Secure.File("password"))
	if err != nil || !bytes.HasSuffix(password, []byte("\n")) {
		r.t.Fatalf("the password's file must end with a newline: %v", err)
	}
	r.kubectl("create", "secret", "generic", "kafka",
		"--from-file=ca.crt="+r.Secure.File("ca.pem"), "--from-file=password="+r.Secure.File("password"))

	authority, err := pki.NewAuthority("pods")
	if err != nil {
		r.t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{Name: r.name, Hosts: []string{fmt.Sprintf("*.%s-headless.%s.svc", r.name, r.name)}})
	if err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	args := []string{"create", "secret", "generic", "peers"}
	for name, content := range map[string][]byte{
		"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": authority.PEM(), "token": []byte("between the pods\n"),
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			r.t.Fatal(err)
		}
		args = append(args, "--from-file="+file)
	}
	r.kubectl(args...)
}

// newPassword replaces the password at the broker and in the secret, and starts
// the broker again, so that every connection has to be made anew.
func (r *release) newPassword(pods []pod) {
	r.t.Helper()
	const password = "another one"
	r.SetSCRAMPassword(r.t, cluster.SecureUser, password)
	file := filepath.Join(r.t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	secret := r.kubectl("create", "secret", "generic", "kafka", "--dry-run=client", "--output", "yaml",
		"--from-file=ca.crt="+r.Secure.File("ca.pem"), "--from-file=password="+file)
	if _, _, err := command(r.t, strings.NewReader(secret), "kubectl", "--namespace", r.name, "apply", "--filename", "-"); err != nil {
		r.t.Fatal(err)
	}
	r.StopBroker(r.t, 1)
	r.StartBroker(r.t, 1)
	r.thirty(pods, 0)
	again := r.awaitReady(len(pods))
	if same := common(pods, again); same != len(pods) {
		r.t.Errorf("%d of %d pods are those that there were", same, len(pods))
	}
	for _, p := range again {
		if p.restarts() != 0 {
			r.t.Errorf("%s was restarted %d times", p.name(), p.restarts())
		}
	}
	r.t.Logf("figure: a new password in the secret: %d pods log in with it, none was restarted", len(again))
}
