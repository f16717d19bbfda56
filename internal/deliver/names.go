package deliver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/record"
)

// errorNames are Kafka's names (org.apache.kafka.common.protocol.Errors) of
// what a broker may answer to Produce, InitProducerId, Metadata and
// OffsetCommit.
func errorName(code sarama.KError) string {
	switch code {
	case sarama.ErrUnknown:
		return "UNKNOWN_SERVER_ERROR"
	case sarama.ErrNoError:
		return "NONE"
	case sarama.ErrInvalidMessage:
		return "CORRUPT_MESSAGE"
	case sarama.ErrUnknownTopicOrPartition:
		return "UNKNOWN_TOPIC_OR_PARTITION"
	case sarama.ErrInvalidMessageSize:
		return "INVALID_FETCH_SIZE"
	case sarama.ErrLeaderNotAvailable:
		return "LEADER_NOT_AVAILABLE"
	case sarama.ErrNotLeaderForPartition:
		return "NOT_LEADER_OR_FOLLOWER"
	case sarama.ErrRequestTimedOut:
		return "REQUEST_TIMED_OUT"
	case sarama.ErrBrokerNotAvailable:
		return "BROKER_NOT_AVAILABLE"
	case sarama.ErrReplicaNotAvailable:
		return "REPLICA_NOT_AVAILABLE"
	case sarama.ErrMessageSizeTooLarge:
		return "MESSAGE_TOO_LARGE"
	case sarama.ErrOffsetMetadataTooLarge:
		return "OFFSET_METADATA_TOO_LARGE"
	case sarama.ErrNetworkException:
		return "NETWORK_EXCEPTION"
	case sarama.ErrOffsetsLoadInProgress:
		return "COORDINATOR_LOAD_IN_PROGRESS"
	case sarama.ErrConsumerCoordinatorNotAvailable:
		return "COORDINATOR_NOT_AVAILABLE"
	case sarama.ErrNotCoordinatorForConsumer:
		return "NOT_COORDINATOR"
	case sarama.ErrInvalidTopic:
		return "INVALID_TOPIC_EXCEPTION"
	case sarama.ErrMessageSetSizeTooLarge:
		return "RECORD_LIST_TOO_LARGE"
	case sarama.ErrNotEnoughReplicas:
		return "NOT_ENOUGH_REPLICAS"
	case sarama.ErrNotEnoughReplicasAfterAppend:
		return "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
	case sarama.ErrInvalidRequiredAcks:
		return "INVALID_REQUIRED_ACKS"
	case sarama.ErrIllegalGeneration:
		return "ILLEGAL_GENERATION"
	case sarama.ErrUnknownMemberId:
		return "UNKNOWN_MEMBER_ID"
	case sarama.ErrRebalanceInProgress:
		return "REBALANCE_IN_PROGRESS"
	case sarama.ErrTopicAuthorizationFailed:
		return "TOPIC_AUTHORIZATION_FAILED"
	case sarama.ErrGroupAuthorizationFailed:
		return "GROUP_AUTHORIZATION_FAILED"
	case sarama.ErrClusterAuthorizationFailed:
		return "CLUSTER_AUTHORIZATION_FAILED"
	case sarama.ErrInvalidTimestamp:
		return "INVALID_TIMESTAMP"
	case sarama.ErrUnsupportedVersion:
		return "UNSUPPORTED_VERSION"
	case sarama.ErrInvalidRequest:
		return "INVALID_REQUEST"
	case sarama.ErrUnsupportedForMessageFormat:
		return "UNSUPPORTED_FOR_MESSAGE_FORMAT"
	case sarama.ErrPolicyViolation:
		return "POLICY_VIOLATION"
	case sarama.ErrOutOfOrderSequenceNumber:
		return "OUT_OF_ORDER_SEQUENCE_NUMBER"
	case sarama.ErrDuplicateSequenceNumber:
		return "DUPLICATE_SEQUENCE_NUMBER"
	case sarama.ErrInvalidProducerEpoch:
		return "INVALID_PRODUCER_EPOCH"
	case sarama.ErrInvalidTxnState:
		return "INVALID_TXN_STATE"
	case sarama.ErrInvalidProducerIDMapping:
		return "INVALID_PRODUCER_ID_MAPPING"
	case sarama.ErrConcurrentTransactions:
		return "CONCURRENT_TRANSACTIONS"
	case sarama.ErrTransactionalIDAuthorizationFailed:
		return "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
	case sarama.ErrKafkaStorageError:
		return "KAFKA_STORAGE_ERROR"
	case sarama.ErrUnknownProducerID:
		return "UNKNOWN_PRODUCER_ID"
	case sarama.ErrFencedLeaderEpoch:
		return "FENCED_LEADER_EPOCH"
	case sarama.ErrUnknownLeaderEpoch:
		return "UNKNOWN_LEADER_EPOCH"
	case sarama.ErrUnsupportedCompressionType:
		return "UNSUPPORTED_COMPRESSION_TYPE"
	case sarama.ErrFencedInstancedId:
		return "FENCED_INSTANCE_ID"
	case sarama.ErrInvalidRecord:
		return "INVALID_RECORD"
	case sarama.ErrUnstableOffsetCommit:
		return "UNSTABLE_OFFSET_COMMIT"
	case sarama.ErrThrottlingQuotaExceeded:
		return "THROTTLING_QUOTA_EXCEEDED"
	case sarama.ErrProducerFenced:
		return "PRODUCER_FENCED"
	default:
		return fmt.Sprintf("ERROR_%d", int16(code))
	}
}

// ErrorName is Kafka's name of the code that an error wraps, or its text.
func ErrorName(err error) string {
	var code sarama.KError
	if errors.As(err, &code) {
		return errorName(code)
	}
	return err.Error()
}

// errorField is an error for the log, in which codes that sarama does not know
// have Kafka's names instead of their numbers.
func errorField(err error) zap.Field {
	text := err.Error()
	var code sarama.KError
	if errors.As(err, &code) && strings.HasPrefix(code.Error(), "Unknown error,") {
		text = strings.ReplaceAll(text, code.Error(), errorName(code))
	}
	return zap.String("error", text)
}

// verdict is what follows from a broker's answer for one batch.
type verdict uint8

const (
	written   verdict = iota // all in-sync replicas have it
	refused                  // these bytes will never be taken
	restart                  // the sequence is lost: a new producer id is needed
	forbidden                // waits for somebody to grant a right or mend a setting
	again                    // the same bytes again, after a pause
)

// judge sorts a broker's answer. Whatever is not known to be final is tried
// again: an output given up here would be lost.
func judge(code sarama.KError) verdict {
	switch code {
	case sarama.ErrNoError,
		// The broker has these bytes under this sequence from an attempt whose
		// answer was lost.
		sarama.ErrDuplicateSequenceNumber:
		return written
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge,
		sarama.ErrInvalidTimestamp, sarama.ErrInvalidRecord,
		sarama.ErrInvalidMessageSize:
		return refused
	case sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID,
		sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping,
		sarama.ErrProducerFenced, sarama.ErrInvalidTxnState:
		return restart
	case sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed,
		sarama.ErrTransactionalIDAuthorizationFailed, sarama.ErrInvalidTopic,
		sarama.ErrUnsupportedCompressionType, sarama.ErrUnsupportedForMessageFormat,
		sarama.ErrInvalidRequiredAcks, sarama.ErrPolicyViolation:
		return forbidden
	default:
		return again
	}
}

// notAppended reports whether an answer proves that this attempt left nothing
// in the log. Only then may the sequence carry other bytes.
func notAppended(code sarama.KError) bool {
	switch code {
	case sarama.ErrNotLeaderForPartition, sarama.ErrLeaderNotAvailable,
		sarama.ErrUnknownTopicOrPartition, sarama.ErrNotEnoughReplicas,
		sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch,
		sarama.ErrThrottlingQuotaExceeded:
		return true
	}
	v := judge(code)
	return v == refused || v == restart || v == forbidden
}

// kindOf names the dead letter that a refusal makes.
func kindOf(code sarama.KError) record.Kind {
	switch code {
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge:
		return record.TooLarge
	case sarama.ErrInvalidTimestamp:
		return record.InvalidTimestamp
	default:
		return record.Rejected
	}
}
