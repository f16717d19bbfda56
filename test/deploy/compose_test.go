package deploy

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"joiner/internal/app"
	"joiner/internal/config"
)

const root = "../.."

// service is what is looked at of a service, as docker-compose renders it.
type service struct {
	Image, Hostname string
	Build           struct{ Context string }
	Command         []string
	Environment     map[string]string
	Volumes, Ports  []string
	Profiles, Tmpfs []string
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	Scale           int
	StopGracePeriod string `yaml:"stop_grace_period"`
	Restart         string
	DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck     struct{ Test []string }
	SecurityOptions []string `yaml:"security_opt"`
}

type project struct {
	Services map[string]service
	Volumes  map[string]any
}

// rendered is the project as Debian's docker-compose reads it, which checks it
// against the schema of Compose; without the environment of this machine.
func rendered(t *testing.T, environ ...string) project {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: make test-compose runs it")
	}
	command := exec.CommandContext(t.Context(), "docker-compose", "--file", "docker-compose.yaml", "--project-name", "joiner", "config")
	command.Dir = root
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "COMPOSE_PROFILES=load"}, environ...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("docker-compose config: %v\n%s\n(test/install docker-compose installs it)", err, &stderr)
	}
	if strings.TrimSpace(stderr.String()) != "" {
		t.Errorf("docker-compose config says: %s", &stderr)
	}
	var p project
	if err := yaml.Unmarshal(out, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCompose renders the file once, and once more with what can be set from
// outside, since docker-compose takes its seconds.
func TestCompose(t *testing.T) {
	p := rendered(t)
	for name, test := range map[string]func(*testing.T, project){
		"has what it says":     hasWhatItSays,
		"pins images":          pinsImages,
		"listens on loopback":  listensOnLoopback,
		"starts in order":      startsInOrder,
		"hardens joiners":      hardensJoiners,
		"mounts what is there": mountsWhatIsThere,
		"configures joiners":   configuresJoiners,
		"keeps state":          keepsState,
		"waits for a stop":     waitsForAStop,
		"makes the topics":     makesTheTopics,
		"prometheus":           prometheus,
		"grafana":              grafana,
	} {
		t.Run(name, func(t *testing.T) { test(t, p) })
	}
	t.Run("passes on", func(t *testing.T) {
		passesOn(t, rendered(t, "JOINER_VERSION=1.2.3", "JOINER_DELIVERY_GUARANTEE=exactly_once", "JOINER_GROUP_STRATEGY=roundrobin"))
	})
}

func (p project) names() []string { return slices.Sorted(maps.Keys(p.Services)) }

func hasWhatItSays(t *testing.T, p project) {
	want := []string{"grafana", "joiner", "kafka", "load", "prometheus", "topics"}
	if got := p.names(); !slices.Equal(got, want) {
		t.Fatalf("services %v, want %v", got, want)
	}
	if n := p.Services["joiner"].Scale; n != 3 {
		t.Errorf("%d joiners, want 3", n)
	}
	if got := p.Services["load"].Profiles; !slices.Equal(got, []string{"load"}) {
		t.Errorf("the load has the profiles %v: it would start with everything else", got)
	}
}

// Images are pinned to a version, the broker's to the one that all tests run on.
func pinsImages(t *testing.T, p project) {
	for _, name := range p.names() {
		s := p.Services[name]
		switch {
		case s.Image == "joiner:dev":
		case !regexp.MustCompile(`^[a-z]+/[a-z]+:v?\d+\.\d+\.\d+$`).MatchString(s.Image):
			t.Errorf("%s: %s is not pinned to a version", name, s.Image)
		}
	}
	if got, want := p.Services["kafka"].Image, "apache/kafka:"+testedKafka(t); got != want {
		t.Errorf("the broker is %s, and the tests run on %s", got, want)
	}
}

func testedKafka(t *testing.T) string {
	t.Helper()
	file, err := os.Open(filepath.Join(root, "test/kafka/pom.xml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var pom struct {
		Properties struct {
			Kafka string `xml:"kafka.version"`
		} `xml:"properties"`
	}
	if err := xml.NewDecoder(file).Decode(&pom); err != nil {
		t.Fatal(err)
	}
	return pom.Properties.Kafka
}

// Nothing has a password, so nothing listens beyond loopback.
func listensOnLoopback(t *testing.T, p project) {
	ports := 0
	for _, name := range p.names() {
		for _, port := range p.Services[name].Ports {
			ports++
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s listens on %s", name, port)
			}
		}
	}
	if ports != 4 {
		t.Errorf("%d published ports, want those of the broker, the joiners, Prometheus and Grafana", ports)
	}
}

// Everybody waits for what it needs, and what is waited for can be told to be
// there.
func startsInOrder(t *testing.T, p project) {
	needs := map[string]string{"topics": "kafka", "joiner": "topics", "load": "joiner", "grafana": "prometheus"}
	for name, needed := range needs {
		s := p.Services[name]
		condition := "service_healthy"
		if needed == "topics" {
			condition = "service_completed_successfully"
		}
		if got := s.DependsOn[needed].Condition; got != condition {
			t.Errorf("%s waits for %s by %q, want %s", name, needed, got, condition)
		}
	}
	for _, name := range p.names() {
		if s := p.Services[name]; name != "topics" && name != "load" && len(s.Healthcheck.Test) == 0 {
			t.Errorf("%s has no health check", name)
		}
	}
	if got := p.Services["joiner"].Healthcheck.Test; !slices.Equal(got, []string{"CMD", "/joiner", "health"}) {
		t.Errorf("joiner's health check is %v", got)
	}
	if got := p.Services["topics"].Restart; got != "no" {
		t.Errorf("the topics are made again and again: restart %q", got)
	}
}

// The root file system is read-only and nobody has rights to spare.
func hardensJoiners(t *testing.T, p project) {
	for _, name := range []string{"joiner", "load"} {
		s := p.Services[name]
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.SecurityOptions, []string{"no-new-privileges:true"}) {
			t.Errorf("%s: read-only %v, capabilities dropped %v, %v", name, s.ReadOnly, s.CapDrop, s.SecurityOptions)
		}
	}
}

// mounts are what a service mounts: path in the container → file here, or the
// name of a volume, or nothing for a volume without one.
func mounts(s service) map[string]string {
	found := make(map[string]string)
	for _, v := range s.Volumes {
		parts := strings.Split(v, ":")
		if len(parts) == 1 {
			found[parts[0]] = ""
			continue
		}
		found[parts[1]] = parts[0]
	}
	return found
}

func mountsWhatIsThere(t *testing.T, p project) {
	files := 0
	used := make(map[string]bool)
	for _, name := range p.names() {
		for at, what := range mounts(p.Services[name]) {
			if !filepath.IsAbs(what) {
				used[what] = true
				continue
			}
			files++
			if _, err := os.Stat(what); err != nil {
				t.Errorf("%s mounts at %s: %v", name, at, err)
			}
		}
	}
	if files != 5 {
		t.Errorf("%d mounted files and directories, want 5", files)
	}
	for name := range p.Volumes {
		if !used[name] {
			t.Errorf("nobody uses the volume %s", name)
		}
		delete(used, name)
	}
	delete(used, "")
	for name := range used {
		t.Errorf("the volume %s is not declared", name)
	}
}

// environment of a service, as os.Environ would return it in its container.
func (s service) environ() (all []string) {
	for name, value := range s.Environment {
		all = append(all, name+"="+value)
	}
	return all
}

// The joiners' configuration is one that joiner takes, without a warning.
func configuresJoiners(t *testing.T, p project) {
	for _, name := range []string{"joiner", "load"} {
		loaded, err := config.Load(config.Options{Environ: p.Services[name].environ()})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(loaded.Warnings) > 0 {
			t.Errorf("%s: %v", name, loaded.Warnings)
		}
		if err := app.Check(loaded.Config); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := loaded.Kafka.Brokers; !slices.Equal(got, []string{"kafka:9092"}) {
			t.Errorf("%s asks %v for brokers", name, got)
		}
	}
}

// What is set around the file is passed on.
func passesOn(t *testing.T, p project) {
	for _, name := range []string{"joiner", "load"} {
		s := p.Services[name]
		if s.Image != "joiner:1.2.3" {
			t.Errorf("%s with JOINER_VERSION=1.2.3 is %s", name, s.Image)
		}
		for key, want := range map[string]string{"JOINER_DELIVERY_GUARANTEE": config.ExactlyOnce, "JOINER_GROUP_STRATEGY": "roundrobin"} {
			if got := s.Environment[key]; got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
	}
	configuresJoiners(t, p)
}

// State lies in a volume, since the root file system is read-only, and where the
// image has a directory of the user's for it: a volume takes its owner from there.
func keepsState(t *testing.T, p project) {
	s := p.Services["joiner"]
	dir := s.Environment["JOINER_STATE_DIR"]
	at := filepath.Dir(dir)
	if what, ok := mounts(s)[at]; !ok || what != "" {
		t.Errorf("state.dir is %q, whose parent is mounted: %v, by the name %q, which all joiners would share", dir, ok, what)
	}
	if !strings.Contains(read(t, "Dockerfile"), "COPY --from=build --chown=65532:65532 /out/state "+at+"\n") {
		t.Errorf("the image has no %s that belongs to its user", at)
	}
}

// A stop is not cut short by Docker: it waits longer than joiner takes at most.
func waitsForAStop(t *testing.T, p project) {
	s := p.Services["joiner"]
	var seconds int
	if _, err := fmt.Sscanf(s.StopGracePeriod, "%ds", &seconds); err != nil {
		t.Fatalf("%q: %v", s.StopGracePeriod, err)
	}
	if atLeast := config.Default().Shutdown.Timeout.Seconds(); float64(seconds) <= atLeast {
		t.Errorf("Docker kills after %d s, and shutdown.timeout is %v s", seconds, atLeast)
	}
}

// The topics that are made are those that joiner reads and writes.
func makesTheTopics(t *testing.T, p project) {
	s := p.Services["topics"]
	script := strings.Join(s.Command, "\n")
	made := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^create (\S+)`).FindAllStringSubmatch(script, -1) {
		made[m[1]] = true
	}
	topics := config.Default().Topics
	for _, topic := range []string{topics.MarketUpdates, topics.Notifications, topics.EnrichedAlerts, topics.DeadLetters} {
		if !made[topic] {
			t.Errorf("nobody makes the topic %s", topic)
		}
		delete(made, topic)
	}
	if len(made) > 0 {
		t.Errorf("nobody uses the topics %v", made)
	}
	// What bash gets: the script is well-formed, and its variables are the shell's.
	check := exec.CommandContext(t.Context(), "bash", "-n")
	check.Stdin = strings.NewReader(strings.ReplaceAll(script, "$$", "$"))
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("bash -n: %v\n%s", err, out)
	}
}

// promtool reads the configuration of Prometheus with its files where the
// container has them.
func prometheus(t *testing.T, p project) {
	s := p.Services["prometheus"]
	container := t.TempDir()
	for at, what := range mounts(s) {
		if !filepath.IsAbs(what) {
			continue
		}
		content, err := os.ReadFile(what)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(container, at)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const flag = "--config.file="
	i := slices.IndexFunc(s.Command, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	if i < 0 {
		t.Fatalf("prometheus is not told its configuration: %v", s.Command)
	}
	file := filepath.Join(container, strings.TrimPrefix(s.Command[i], flag))
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", file).CombinedOutput()
	if err != nil || !regexp.MustCompile(`SUCCESS: \d+ rules found`).Match(out) {
		t.Errorf("promtool check config: %v\n%s", err, out)
	}

	var c struct {
		Scrape []struct {
			SD []struct {
				Names []string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	parse(t, "deploy/compose/prometheus.yml", &c)
	if len(c.Scrape) != 1 || len(c.Scrape[0].SD) != 1 {
		t.Fatalf("%+v, want one job that finds the joiners", c)
	}
	sd := c.Scrape[0].SD[0]
	listen := ":" + fmt.Sprint(sd.Port)
	if _, ok := p.Services[sd.Names[0]]; !ok || listen != config.Default().HTTP.Listen {
		t.Errorf("%v at %s is no service, or not where joiner listens", sd.Names, listen)
	}
}

// Grafana finds its data source and dashboard where it is told to look, and the
// variable of the dashboard has something to choose.
func grafana(t *testing.T, p project) {
	s := p.Services["grafana"]
	var sources struct {
		Sources []struct{ Type, URL string } `yaml:"datasources"`
	}
	parse(t, "deploy/compose/grafana/datasources/prometheus.yaml", &sources)
	if len(sources.Sources) != 1 || sources.Sources[0].Type != "prometheus" || sources.Sources[0].URL != "http://prometheus:9090" {
		t.Errorf("data sources: %+v", sources)
	}
	var dashboards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	parse(t, "deploy/compose/grafana/dashboards/joiner.yaml", &dashboards)
	if len(dashboards.Providers) != 1 {
		t.Fatalf("providers: %+v", dashboards)
	}
	path, at := dashboards.Providers[0].Options.Path, mounts(s)
	if _, err := os.Stat(filepath.Join(at[path], "joiner.json")); at[path] == "" || err != nil {
		t.Errorf("no dashboard at %s: %v", path, err)
	}
	if home := s.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]; home != path+"/joiner.json" {
		t.Errorf("the first page is %s", home)
	}
	for _, kind := range []string{"datasources", "dashboards"} {
		if at["/etc/grafana/provisioning/"+kind] == "" {
			t.Errorf("Grafana is not told of %s", kind)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// parse reads a YAML file of the project.
func parse(t *testing.T, name string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, name)), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
