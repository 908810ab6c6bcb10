package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interruptible returns a context that ends with the first Ctrl-C or SIGTERM. A
// second one ends the process at once.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
			return
		}
		if _, again := <-signals; again {
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, sync.OnceFunc(func() {
		cancel()
		signal.Stop(signals)
		close(signals) // nothing is sent on it any more
	})
}
