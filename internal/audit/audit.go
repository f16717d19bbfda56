package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"joiner/internal/record"
)

// extent is what there is of a partition, and from where on it is read.
type extent struct{ start, from, end int64 }

// auditor holds the state of one audit. Its steps run one after the other.
type auditor struct {
	o      *Options
	log    Log
	topics Topics
	hash   *hasher
	dir    string

	since, until int64 // of record timestamps; the least and greatest where there is no bound

	notes, market, alerts, dead []extent // by partition
	noteEnds                    []int64  // after the outputs' ends were asked for

	outputs   *sorter[output, *output]
	questions *sorter[question, *question]
	doubts    *sorter[doubt, *doubt]
	spans     *sorter[span, *span]
	drops     *sorter[drop, *drop]

	report   Report
	examples map[string]int
	told     time.Time // of the last line of progress
}

// Audit reads the topics and reports. Its errors are the log's, ctx's, and
// those of the disk that rows are sorted on; a topic that does not exist is
// one, except that there need not be any dead letters.
func Audit(ctx context.Context, o Options, log Log, topics Topics) (*Report, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	a := &auditor{
		o: &o, log: log, topics: topics, hash: newHasher(), dir: o.TempDir,
		since: math.MinInt64, until: math.MaxInt64,
		examples: make(map[string]int),
	}
	if a.dir == "" {
		a.dir = os.TempDir()
	}
	a.bound()
	for _, t := range []Topic{topics.Market, topics.Notifications, topics.Alerts} {
		if t.Partitions == 0 {
			return nil, fmt.Errorf("topic %s does not exist", t.Name)
		}
	}
	a.makeSorters()
	err := a.run(ctx)
	if err := errors.Join(err, a.outputs.close(), a.questions.close(), a.doubts.close(), a.spans.close(), a.drops.close()); err != nil {
		return nil, err
	}
	return &a.report, nil
}

func (a *auditor) bound() {
	w := &a.report.Window
	w.Isolation = "read_uncommitted"
	if a.o.Kafka.ReadCommitted {
		w.Isolation = "read_committed"
	}
	if !a.o.Since.IsZero() {
		since := a.o.Since.UTC()
		a.since, w.Since = since.UnixMilli(), &since
	}
	if !a.o.Until.IsZero() {
		until := a.o.Until.UTC()
		a.until, w.Until = until.UnixMilli(), &until
	}
}

// inWindow tells whether a notification of this record timestamp is looked at.
func (a *auditor) inWindow(at int64) bool { return at >= a.since && at < a.until }

// makeSorters shares the memory among the sorters that are filled at a time:
// outputs first, then questions beside it, then the other three.
func (a *auditor) makeSorters() {
	share := int(a.o.Memory / 4)
	a.outputs = newSorter[output](a.dir, share)
	a.questions = newSorter[question](a.dir, share)
	a.spans = newSorter[span](a.dir, share)
	a.doubts = newSorter[doubt](a.dir, share/2)
	a.drops = newSorter[drop](a.dir, share/2)
}

func (a *auditor) run(ctx context.Context) error {
	if err := a.measure(ctx); err != nil {
		return err
	}
	if err := a.readOutputs(ctx); err != nil {
		return err
	}
	outputs, err := a.outputs.sorted()
	if err != nil {
		return err
	}
	if err := a.account(ctx, outputs); err != nil {
		return err
	}
	questions, err := a.questions.sorted()
	if err != nil {
		return err
	}
	if err := a.replay(ctx, questions, outputs); err != nil {
		return err
	}
	if err := a.settleDoubts(ctx); err != nil {
		return err
	}
	if err := a.settleSpans(); err != nil {
		return err
	}
	if err := a.settleDrops(); err != nil {
		return err
	}
	a.explain()
	return a.nameExamples(ctx)
}

// measure fixes how far each partition is read. The notifications' ends come
// first, so that their outputs have time to be there, and once more behind the
// outputs' ends: what names a source in between is too new, and what names one
// above has none. The market's come last, since nothing can cite more.
func (a *auditor) measure(ctx context.Context) (err error) {
	t := &a.topics
	if a.notes, err = a.extents(ctx, t.Notifications, a.since); err != nil {
		return err
	}
	if a.alerts, err = a.extents(ctx, t.Alerts, a.since); err != nil {
		return err
	}
	if a.dead, err = a.extents(ctx, t.DeadLetters, a.since); err != nil {
		return err
	}
	for p := range t.Notifications.Partitions {
		_, end, err := a.log.Bounds(ctx, t.Notifications.Name, p)
		if err != nil {
			return err
		}
		a.noteEnds = append(a.noteEnds, end)
	}
	a.market, err = a.extents(ctx, t.Market, math.MinInt64)
	return err
}

// extents returns what there is of a topic's partitions. Where since is not the
// least, the reading begins at the first record that is not older.
func (a *auditor) extents(ctx context.Context, t Topic, since int64) ([]extent, error) {
	all := make([]extent, t.Partitions)
	for p := range all {
		start, end, err := a.log.Bounds(ctx, t.Name, int32(p))
		if err != nil {
			return nil, fmt.Errorf("bounds of partition %d: %s: %w", p, missingRight(t.Name, err), err)
		}
		all[p] = extent{start: start, from: start, end: end}
		if since == math.MinInt64 {
			continue
		}
		from, err := a.log.Since(ctx, t.Name, int32(p), record.Millis(since))
		if err != nil {
			return nil, err
		}
		all[p].from = min(max(from, start), end)
	}
	return all, nil
}

// read reads a partition from from up to to and hands its records on one by
// one.
func (a *auditor) read(ctx context.Context, topic string, partition int32, from, to int64, each func(*record.Record) error) error {
	c := Covered{Topic: topic, Partition: partition, From: from, To: max(from, to)}
	err := a.log.Read(ctx, topic, partition, from, to, func(records []record.Record) error {
		c.see(records)
		a.progress(topic, partition, records[len(records)-1].Offset+1, to)
		for i := range records {
			if err := each(&records[i]); err != nil {
				return err
			}
		}
		return nil
	}, nil)
	if err != nil {
		return fmt.Errorf("reading partition %d: %s: %w", partition, missingRight(topic, err), err)
	}
	a.report.Window.Partitions = append(a.report.Window.Partitions, c)
	return nil
}

const progressEvery = 5 * time.Second

func (a *auditor) progress(topic string, partition int32, at, end int64) {
	if now := time.Now(); now.Sub(a.told) >= progressEvery {
		a.told = now
		a.o.Progress(fmt.Sprintf("%s/%d: offset %d of %d", topic, partition, at, end))
	}
}

// say gives an example, of which only the first few of a kind are kept.
func (a *auditor) say(kind, topic string, at place, format string, args ...any) {
	if a.examples[kind] >= a.o.Examples {
		return
	}
	a.examples[kind]++
	a.report.Examples = append(a.report.Examples, Example{
		Kind: kind, Topic: topic, Partition: at.partition, Offset: at.offset, Detail: fmt.Sprintf(format, args...),
	})
}

// wrong counts an output that is not what it should be.
func (a *auditor) wrong(topic string, at place, format string, args ...any) {
	a.report.Wrong++
	a.say(kindWrong, topic, at, format, args...)
}

func (a *auditor) unverifiable(topic string, at place, format string, args ...any) {
	a.report.Unverifiable++
	a.say(kindUnverifiable, topic, at, format, args...)
}

func (a *auditor) foreign(topic string, at place, format string, args ...any) {
	a.report.Foreign++
	a.say(kindForeign, topic, at, format, args...)
}

// topicOf names the topic of an output.
func (a *auditor) topicOf(o *output) string {
	if o.dead {
		return a.topics.DeadLetters.Name
	}
	return a.topics.Alerts.Name
}
