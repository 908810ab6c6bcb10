//go:build race

package main

// raceDetector: the embedded server is several times slower under it. Timing is
// judged in the plain run, with SLUICE_TIMING=strict.
const raceDetector = true
