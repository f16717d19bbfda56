package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

// inject has a fault happen, and what is broken mended. It returns what the
// fault touched; a fault that touches nothing is an error.
func (r *run) inject(p planned) (touched string, err error) {
	switch p.kind {
	case podKilled:
		return r.killPod(p)
	case podStopped:
		return r.stopPod(p)
	case podTerminated:
		return r.terminatePod(p)
	case brokerKilled:
		return r.killBroker(p)
	case grown:
		return r.grow(p)
	case fenced:
		return r.fence(p)
	case cut, cutShort, delayed, narrowed, halfOpen:
		return r.disturb(p)
	}
	return "", fmt.Errorf("nobody knows how to do %q", p.kind)
}

func (r *run) killPod(p planned) (string, error) {
	s := r.slots[p.pod]
	owned, err := s.awaitOwned()
	if err != nil {
		return "", err
	}
	_ = s.scrape() // the last look at it
	pod := s.process()
	pod.Kill()
	time.Sleep(p.lasts)
	s.start()
	return fmt.Sprintf("%s with partitions %v", pod.Name, owned), nil
}

func (r *run) stopPod(p planned) (string, error) {
	s := r.slots[p.pod]
	owned, err := s.awaitOwned()
	if err != nil {
		return "", err
	}
	pod := s.process()
	pod.Signal(syscall.SIGSTOP)
	time.Sleep(p.lasts)
	pod.Signal(syscall.SIGCONT)
	err = poll(pod.Name+" to answer again", func() error {
		if err := s.alive(); err != nil {
			return err
		}
		_, err := s.get(pod, "/livez")
		return err
	})
	return fmt.Sprintf("%s with partitions %v", pod.Name, owned), err
}

func (r *run) terminatePod(p planned) (string, error) {
	s := r.slots[p.pod]
	owned, err := s.awaitOwned()
	if err != nil {
		return "", err
	}
	_ = s.scrape()
	pod := s.process()
	pod.Signal(syscall.SIGTERM)
	code := pod.Wait()
	switch {
	case code == 1 && pod.LogContains("joiner: "):
		r.shutCut.Add(1) // it says what was left uncommitted
	case code != 0:
		return "", fmt.Errorf("%s ended with %d after SIGTERM", pod.Name, code)
	}
	time.Sleep(p.lasts)
	s.start()
	return fmt.Sprintf("%s with partitions %v, which ended with %d", pod.Name, owned, code), nil
}

func (r *run) killBroker(p planned) (string, error) {
	topics := []string{r.w.market, r.w.notes, r.w.alerts}
	coordinator := r.w.coordinator()
	victim := coordinator
	if p.role == aLeader {
		most := 0
		for broker, n := range r.w.leaders(r.w.notes) {
			if broker != coordinator && n > most {
				victim, most = broker, n
			}
		}
	}
	led := r.w.leaders(topics...)[victim]
	if led == 0 {
		return "", fmt.Errorf("broker %d leads nothing", victim)
	}
	r.w.KillBroker(r.t, victim)
	time.Sleep(p.lasts)
	r.w.StartBroker(r.t, victim)
	// The next one must not take the last replica in sync.
	err := poll("all replicas to be in sync", func() error {
		return inSync(r.w.Brokers, append(topics, r.w.dead, "__consumer_offsets")...)
	})
	return fmt.Sprintf("broker %d, which led %d partitions; the coordinator was %d", victim, led, coordinator), err
}

func (r *run) grow(p planned) (string, error) {
	topics := []string{r.w.market, r.w.notes, r.w.alerts, r.w.dead}
	from := r.grown.Load()
	for _, i := range rand.New(rand.NewPCG(uint64(p.at), 0)).Perm(len(topics)) {
		if err := r.growTopic(topics[i], from+1); err != nil {
			return "", err
		}
		time.Sleep(time.Second)
	}
	r.grown.Add(1)
	return fmt.Sprintf("%d topics from %d to %d partitions", len(topics), from, from+1), nil
}

func (r *run) growTopic(topic string, to int32) error {
	return poll(fmt.Sprintf("%s to have %d partitions", topic, to), func() error {
		if err := r.w.client.RefreshMetadata(topic); err != nil {
			return err
		}
		if have, err := r.w.client.Partitions(topic); err == nil && len(have) >= int(to) {
			return nil
		}
		admin, err := sarama.NewClusterAdmin(r.w.Brokers, r.w.client.Config())
		if err != nil {
			return err
		}
		defer func() { _ = admin.Close() }()
		return errors.Join(admin.CreatePartitions(topic, to, nil, false), errors.New("asked for them"))
	})
}

// fence takes a live pod's producer away, as a second process with its id would.
func (r *run) fence(p planned) (string, error) {
	s := r.slots[p.pod]
	if _, err := s.awaitOwned(); err != nil {
		return "", err
	}
	lines := s.process().Logged("writing in transactions")
	if len(lines) == 0 {
		return "", fmt.Errorf("%s does not say what its transactional id is", s.process().Name)
	}
	id := lines[0].Text("transactional_id")
	before := s.count()[txnFenced]
	tries := 0
	// A pod that is just making its producer anew has it back unharmed.
	err := poll("a pod to be fenced", func() error {
		tries++
		if err := r.initProducer(id); err != nil {
			return err
		}
		return pollFor(5*time.Second, func() error {
			if err := s.scrape(); err != nil {
				return err
			}
			if s.count()[txnFenced] <= before {
				return errors.New("it has not noticed")
			}
			return nil
		})
	})
	return fmt.Sprintf("%s at try %d", id, tries), err
}

func pollFor(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (r *run) initProducer(id string) error { return r.w.initProducer(id) }

// initProducer makes the test the producer of that transactional id.
func (w *world) initProducer(id string) error {
	if err := w.client.RefreshTransactionCoordinator(id); err != nil {
		return err
	}
	broker, err := w.client.TransactionCoordinator(id)
	if err != nil {
		return err
	}
	answer, err := broker.InitProducerID(&sarama.InitProducerIDRequest{
		Version: 3, TransactionalID: &id, TransactionTimeout: 10 * time.Second, ProducerID: -1, ProducerEpoch: -1,
	})
	if err == nil && answer.Err != sarama.ErrNoError {
		err = answer.Err
	}
	return err
}

// disturb breaks a pod's connections to a broker.
func (r *run) disturb(p planned) (string, error) {
	ways := r.w.ways
	connections := 0
	err := poll(fmt.Sprintf("pod %d to be connected with broker %d", p.pod+1, p.broker+1), func() (err error) {
		if connections, err = ways.established(p.pod, p.broker); err == nil && connections == 0 {
			err = errors.New("there is no connection")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	r.wayLocks[p.pod][p.broker].Lock() // one toxic at a time
	defer r.wayLocks[p.pod][p.broker].Unlock()
	switch p.kind {
	case cut:
		one := ways.all[p.pod][p.broker]
		one.Stop()
		time.Sleep(p.lasts)
		return fmt.Sprintf("%d connections", connections), one.Start()
	case cutShort:
		err = ways.toxic(p.pod, p.broker, "limit_data", fmt.Sprintf(`"bytes": %d`, p.amount), "downstream")
	case delayed:
		err = ways.toxic(p.pod, p.broker, "latency", fmt.Sprintf(`"latency": %d, "jitter": %d`, p.amount, p.amount/2))
	case narrowed:
		err = ways.toxic(p.pod, p.broker, "bandwidth", fmt.Sprintf(`"rate": %d`, p.amount))
	case halfOpen:
		err = ways.toxic(p.pod, p.broker, "timeout", `"timeout": 0`)
	default:
		err = fmt.Errorf("nobody knows how to do %q", p.kind)
	}
	if err != nil {
		return "", err
	}
	time.Sleep(p.lasts)
	ways.heal(p.pod, p.broker)
	return fmt.Sprintf("%d connections", connections), nil
}
