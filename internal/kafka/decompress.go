package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxBatchBytes is the largest batch that is read, in bytes without compression.
// A topic's max.message.bytes bounds what a batch is with it, and a kilobyte of
// zeros may be a gigabyte: whoever may write to an input could end each pod that
// gets the partition, one after the other.
const maxBatchBytes = 256 << 20

// errTooLarge says that a batch is larger than what is read.
var errTooLarge = errors.New("it is too large")

// decompressor is a kgo.Decompressor with a bound. It may be used from many
// goroutines at once.
type decompressor struct {
	most  int
	plain kgo.Decompressor // for Snappy, which makes at most some twenty bytes of one
	zstd  *zstd.Decoder
	gzips sync.Pool // of *gzip.Reader
	lz4s  sync.Pool // of *lz4.Reader
}

func newDecompressor(most int) *decompressor {
	// It fails for options that make no sense only.
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(most)))
	if err != nil {
		panic(err)
	}
	return &decompressor{
		most: most, plain: kgo.DefaultDecompressor(), zstd: z,
		gzips: sync.Pool{New: func() any { return new(gzip.Reader) }},
		lz4s:  sync.Pool{New: func() any { return lz4.NewReader(nil) }},
	}
}

// Decompress implements kgo.Decompressor.
func (d *decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	switch codec {
	case kgo.CodecGzip:
		r, _ := d.gzips.Get().(*gzip.Reader)
		defer d.gzips.Put(r)
		if err := r.Reset(bytes.NewReader(src)); err != nil {
			return nil, err
		}
		return d.all(r)
	case kgo.CodecLz4:
		r, _ := d.lz4s.Get().(*lz4.Reader)
		defer d.lz4s.Put(r)
		r.Reset(bytes.NewReader(src))
		return d.all(r)
	case kgo.CodecZstd:
		out, err := d.zstd.DecodeAll(src, nil)
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
			return nil, d.tooLarge()
		}
		return out, err
	default:
		return d.plain.Decompress(src, codec)
	}
}

func (d *decompressor) all(r io.Reader) ([]byte, error) {
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(r, int64(d.most)+1))
	if err != nil {
		return nil, err
	}
	if n > int64(d.most) {
		return nil, d.tooLarge()
	}
	return out.Bytes(), nil
}

func (d *decompressor) tooLarge() error {
	return fmt.Errorf("%w: more than %d bytes", errTooLarge, d.most)
}
