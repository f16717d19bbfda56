package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"joiner/internal/config"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger makes the log of a command. It goes to w, standard error in
// practice: standard output belongs to what a command prints.
func newLogger(c config.Log, w io.Writer) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	core := zapcore.NewCore(encoder(c.Format), zapcore.Lock(zapcore.AddSync(w)), level)
	return zap.New(core), nil
}

func encoder(format string) zapcore.Encoder {
	keys := zapcore.EncoderConfig{
		TimeKey:        "time",
		LevelKey:       "level",
		NameKey:        "logger",
		MessageKey:     "msg",
		EncodeTime:     utcMillis,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
	}
	if format == "console" {
		return zapcore.NewConsoleEncoder(keys)
	}
	return zapcore.NewJSONEncoder(keys)
}

// utcMillis writes times as the records of this project have them: UTC, three
// fraction digits.
func utcMillis(t time.Time, out zapcore.PrimitiveArrayEncoder) {
	out.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// logSarama sends sarama's own log to ours, at level debug. sarama has one
// logger for the process: call it once, before the first client is made.
// Without debug it stays silent and formats nothing.
func logSarama(log *zap.Logger) {
	if log.Core().Enabled(zapcore.DebugLevel) {
		sarama.Logger = saramaLog{log.Named("sarama")}
	}
}

// saramaLog is a sarama.StdLogger.
type saramaLog struct{ log *zap.Logger }

// Print logs as fmt.Sprint writes.
func (s saramaLog) Print(v ...any) { s.write(fmt.Sprint(v...)) }

// Printf logs as fmt.Sprintf writes.
func (s saramaLog) Printf(format string, v ...any) { s.write(fmt.Sprintf(format, v...)) }

// Println logs as fmt.Sprintln writes.
func (s saramaLog) Println(v ...any) { s.write(fmt.Sprintln(v...)) }

func (s saramaLog) write(text string) { s.log.Debug(strings.TrimSpace(text)) }
