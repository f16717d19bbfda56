package deliver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/IBM/sarama"
)

// Errors in the log have names, those included that sarama has none for.
func TestErrorsInTheLogHaveNames(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("transaction of 3 outputs: %w", sarama.ErrProducerFenced), "transaction of 3 outputs: PRODUCER_FENCED"},
		{fmt.Errorf("x: %w", sarama.KError(1234)), "x: ERROR_1234"},
		{errors.New("no answer"), "no answer"},
		{fmt.Errorf("x: %w", sarama.ErrNotEnoughReplicas), "x: " + sarama.ErrNotEnoughReplicas.Error()},
	} {
		if got := errorField(c.err); got.Key != "error" || got.String != c.want {
			t.Errorf("%v: %s=%q, want %q", c.err, got.Key, got.String, c.want)
		}
	}
}
