package k8s

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// Checkpoints in volumes: a pod that is deleted with force restores from its own
// and reads the rest of the log only; without it, all of the log. While it does,
// whoever asks for its prices hears so.
func checkpoints(t *testing.T, s *stage) {
	r := s.release(t, "checkpoints")
	volumes := r.volumes(2)
	r.install("--set", "staticMembership=true", "--set", "persistence.enabled=true", "--set-string", "persistence.storageClass=-",
		"--set", "config.state.checkpoint_interval=1s", "--set", "config.join.remote_patience=1s")
	pods := r.awaitReady(2)
	r.awaitBalanced(pods)
	symbols := r.symbols()
	r.load("--rate", "0", "--count", "3000", "--ticks-per-notification", "20", "--symbols", "2000").wait()
	filled := time.Now()
	await(t, "checkpoints of all that is there", func() error {
		for _, p := range pods {
			at := r.metrics(p).Sum("joiner_checkpoint_last_success_timestamp_seconds")
			if at < float64(filled.Add(2*time.Second).Unix()) {
				return fmt.Errorf("%s: the last one is of %v", p.name(), time.Unix(int64(at), 0))
			}
		}
		return nil
	})

	with := r.deletedWithForce()
	if with.checkpoints == 0 {
		t.Error("no table was restored from its checkpoint")
	}
	// The same again without: its files are gone when the next pod looks.
	without := r.deletedWithForce(func() { wipe(t, volumes) })
	t.Logf("figure: deleted with force: with its checkpoint %d records in %v (%d tables from checkpoints), without %d records in %v",
		with.records, with.took.Round(time.Millisecond), with.checkpoints, without.records, without.took.Round(time.Millisecond))
	if without.checkpoints != 0 || with.records >= without.records {
		t.Errorf("the checkpoint does not shorten the restore: %+v, %+v", with, without)
	}
	// And once more, as slowly as a log of days would be read.
	r.quota(50_000)
	r.deletedWithForce(func() { wipe(t, volumes) }, func() { r.hearsRestoring(symbols); r.quota(0) })
	r.sound(atLeastOnce)
	r.uninstall() // the claims of the volumes, too: persistence.retain is not set
}

// volumes makes n volumes of the host for the claims of the release, and returns
// where they lie.
func (r *release) volumes(n int) (dirs []string) {
	r.t.Helper()
	for i := range n {
		dir := filepath.Join(r.t.TempDir(), "volume")
		if err := os.Mkdir(dir, 0o777); err != nil { //nolint:gosec // the pod's user is another one
			r.t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // likewise, whatever the umask
			r.t.Fatal(err)
		}
		name := fmt.Sprintf("%s-%d", r.name, i)
		volume, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "PersistentVolume", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"capacity": map[string]any{"storage": "1Gi"}, "accessModes": []string{"ReadWriteOnce"},
				"persistentVolumeReclaimPolicy": "Retain", "hostPath": map[string]any{"path": dir},
				"claimRef": map[string]any{"namespace": r.name, "name": "state-" + name},
			},
		})
		if err != nil {
			r.t.Fatal(err)
		}
		if _, _, err := command(r.t, strings.NewReader(string(volume)), "kubectl", "apply", "--filename", "-"); err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() {
			if _, _, err := command(r.t, nil, "kubectl", "delete", "persistentvolume", name, "--wait=false"); err != nil {
				r.t.Log(err)
			}
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

// wipe removes what is in the volumes.
func wipe(t *testing.T, dirs []string) {
	t.Helper()
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s holds no checkpoints (%v)", dir, err)
		}
		for _, file := range files {
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// restored is what a pod has said of its restores.
type restored struct {
	checkpoints int
	records     int64 // offsets read of the log
	took        time.Duration
}

// deletedWithForce ends the second pod without asking it, and returns what the
// one in its place has restored. Of what is to be done the first is done before
// that one starts, the rest meanwhile.
func (r *release) deletedWithForce(do ...func()) (is restored) {
	r.t.Helper()
	old := r.awaitReady(2)[1]
	if len(do) > 0 {
		r.keptOut(old, do[0])
		do = do[1:]
	} else {
		r.kubectl("delete", "pod", old.name(), "--force", "--grace-period=0")
	}
	for _, one := range do {
		one()
	}
	var p pod
	await(r.t, "another pod in its place", func() error {
		for _, one := range r.pods() {
			if one.name() == old.name() && one.Metadata.UID != old.Metadata.UID && one.ready() {
				p = one
				return nil
			}
		}
		return fmt.Errorf("%s is not ready again", old.name())
	})
	is.checkpoints = len(r.said(p, "table restored from its checkpoint"))
	for _, one := range r.said(p, "restored") {
		is.records += one.Number("to") - one.Number("from")
		took, err := time.ParseDuration(one.Text("took"))
		if err != nil {
			r.t.Errorf("%s says of a restore: %v", p.name(), one.Line)
		}
		is.took += took
	}
	return is
}

// keptOut deletes the pod with force, and does something while its process is gone
// and the next one is not let onto the node: one that runs notices what becomes of
// its files.
func (r *release) keptOut(old pod, do func()) {
	r.t.Helper()
	node := strings.TrimSpace(r.kubectl("get", "nodes", "--output", "jsonpath={.items[0].metadata.name}"))
	r.kubectl("cordon", node)
	defer r.kubectl("uncordon", node)
	r.kubectl("delete", "pod", old.name(), "--force", "--grace-period=0")
	await(r.t, old.name()+" to be gone", func() error {
		if _, _, err := get(old, "/livez"); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	do()
}

// symbols gives 40 symbols a price, spread over all partitions.
func (r *release) symbols() (all []string) {
	r.t.Helper()
	var ticks []cluster.KeyValue
	for i := range 40 {
		all = append(all, fmt.Sprintf("ASKED%d", i))
		ticks = append(ticks, cluster.KeyValue{Key: all[i], Value: `{"price": 1.5}`})
	}
	r.ConsoleProduce(r.t, r.topics["market_updates"], ticks)
	return all
}

// hearsRestoring asks the first pod for prices of the second one, which is
// restoring, until it hears just that. A price that exists is never denied.
func (r *release) hearsRestoring(symbols []string) {
	r.t.Helper()
	first := r.pods()[0]
	reasons := make(map[string]int)
	await(r.t, "a look-up to hear that the owner restores", func() error {
		for _, symbol := range symbols {
			status, body, err := get(first, "/v1/prices/"+url.PathEscape(symbol))
			var answer struct{ Reason, Owner string }
			if err == nil {
				err = json.Unmarshal(body, &answer)
			}
			switch {
			case err != nil:
				return err
			case status == http.StatusNotFound:
				r.t.Fatalf("%s: a price that exists is denied: %s", symbol, body)
			case status != http.StatusOK:
				reasons[answer.Reason]++
			}
			if answer.Reason == "restoring" {
				return nil
			}
		}
		return fmt.Errorf("reasons so far: %v", reasons)
	})
	r.t.Logf("figure: look-ups while the owner was away and restored: %v", reasons)
}

// quota limits what each client may read from each broker, in bytes a second; 0
// is no limit.
func (r *release) quota(bytes float64) {
	r.t.Helper()
	err := r.Admin(r.t).AlterClientQuotas(
		[]sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchDefault}},
		sarama.ClientQuotasOp{Key: "consumer_byte_rate", Value: bytes, Remove: bytes == 0}, false)
	if err != nil {
		r.t.Fatalf("quota: %v", err)
	}
}
