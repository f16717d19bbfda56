package placement

import (
	"fmt"
	"hash/crc32"
)

// Partitioner is a pure function from a key to a partition, as some family of
// producers computes it.
type Partitioner interface {
	// Partition returns a number in [0, partitions) for partitions above 0.
	Partition(key []byte, partitions int32) int32
	// Name is the partitioner's name in the configuration.
	Name() string
}

// Names lists the known partitioners, as the configuration spells them.
func Names() []string { return []string{"murmur2", "crc32", "fnv1a"} }

// ByName returns the partitioner of that name, one of Names.
func ByName(name string) (Partitioner, error) {
	switch name {
	case "murmur2":
		return murmur2{}, nil
	case "crc32":
		return crc32IEEE{}, nil
	case "fnv1a":
		return fnv1a{}, nil
	default:
		return nil, fmt.Errorf("unknown partitioner %q: use one of %q or %q", name, Names(), Custom)
	}
}

// murmur2 is what Java's client and most others use:
// toPositive(murmur2(key)) % partitions (BuiltInPartitioner.partitionForKey).
type murmur2 struct{}

func (murmur2) Name() string { return "murmur2" }

func (murmur2) Partition(key []byte, partitions int32) int32 {
	return int32(murmur2Sum(key)&0x7fffffff) % partitions
}

// murmur2Sum is the 32-bit MurmurHash2 of Kafka's Utils.murmur2, with its seed.
func murmur2Sum(data []byte) uint32 {
	const (
		seed  = 0x9747b28c
		mix   = 0x5bd1e995
		shift = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= mix
		k ^= k >> shift
		k *= mix
		h *= mix
		h ^= k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= mix
	}
	h ^= h >> 13
	h *= mix
	h ^= h >> 15
	return h
}

// crc32IEEE is librdkafka's "consistent": the unsigned checksum modulo the
// count. Its "consistent_random" differs only for keys that are null or empty,
// which a Placer never judges.
type crc32IEEE struct{}

func (crc32IEEE) Name() string { return "crc32" }

func (crc32IEEE) Partition(key []byte, partitions int32) int32 {
	return int32(crc32.ChecksumIEEE(key) % uint32(partitions))
}

// fnv1a is sarama's default: the remainder of the signed hash, its sign
// dropped. That is not Java's toPositive: sarama keeps the difference for the
// sake of those who depend on it, and so must we.
type fnv1a struct{}

func (fnv1a) Name() string { return "fnv1a" }

func (fnv1a) Partition(key []byte, partitions int32) int32 {
	const (
		offset = 2166136261
		prime  = 16777619
	)
	h := uint32(offset)
	for _, b := range key {
		h ^= uint32(b)
		h *= prime
	}
	p := int32(h) % partitions
	if p < 0 {
		return -p
	}
	return p
}
