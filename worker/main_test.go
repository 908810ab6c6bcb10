package worker

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the package where a test leaves a goroutine behind: a plugin
// whose last worker stopped has none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
