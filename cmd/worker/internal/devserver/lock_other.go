//go:build !unix

package devserver

import "os"

// fileLock is nothing here: SQLite's own locks keep the file whole, but two servers
// on one file are not told of each other.
type fileLock struct{ f *os.File }

type lockHeld struct{ holder string }

func (e *lockHeld) Error() string { return "locked" + e.holder }

func lockFile(name string) (*fileLock, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return &fileLock{f}, nil
}

func (l *fileLock) unlock() { l.f.Close() }
