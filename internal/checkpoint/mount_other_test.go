//go:build !linux

package checkpoint

import "errors"

func mountTiny(string) error { return errors.New("only on Linux") }

func unmount(string) error { return nil }

func mountReadOnly(string) error { return errors.ErrUnsupported }
