package correlate

import (
	"strconv"

	"inferspan/correlate/semconv"
)

// Bounds of the histograms of steps: seconds, and numbers of tokens or requests.
var (
	stepBounds  = []float64{0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10}
	gapBounds   = []float64{0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5}
	countBounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}
)

// Where a documented metric comes from that the engine does not report itself.
const (
	sourcePeek  = "peek"
	sourceSteps = "steps"
)

// corePoints adds a core's series. What neither the engine nor a look at it
// reports has no series, rather than one that stays 0.
func (c *Correlator) corePoints(f families, e *engine, co *core) {
	if co == e.unplaced {
		return
	}
	e.rules.corePoints(f, e, co)
	m, t := &co.m, &co.steps
	res := e.resource(co.PID)
	index := strconv.Itoa(co.Index)
	f.hist(semconv.MetricIDOTelGenAIServerTimeToFirstToken, &m.first, firstBounds, res, e.model, index)
	f.hist(semconv.MetricIDOTelGenAIServerTimePerOutputToken, &m.perToken, tokenBounds, res, e.model, index)
	f.hist(semconv.MetricIDOTelGenAIServerRequestDuration, &m.duration, durationBounds, res, e.model, index)

	f.hist(semconv.MetricIDOwnStepDuration, &t.duration, stepBounds, res, index)
	f.hist(semconv.MetricIDOwnStepRun, &t.run, stepBounds, res, index)
	f.hist(semconv.MetricIDOwnStepGap, &t.gap, gapBounds, res, index)
	for k := range t.skew {
		f.hist(semconv.MetricIDOwnForwardSkew, &t.skew[k], gapBounds, res, index, skewOf[k])
	}
	for k := range t.tokens {
		f.hist(semconv.MetricIDOwnStepTokens, &t.tokens[k], countBounds, res, index, stepKinds[k])
	}
	f.hist(semconv.MetricIDOwnStepRequests, &t.requests, countBounds, res, index)
	if t.ever {
		f.add(semconv.MetricIDOwnStepsMissed, float64(t.missed), res, index)
	}
	if m.blocks.OK {
		f.add(semconv.MetricIDOwnKVBlocksUsed, float64(m.blocksUsed.V), res, index)
		f.add(semconv.MetricIDOwnKVBlocks, float64(m.blocks.V), res, index)
	}
}

// detailPoints adds the changes of an engine's probes.
func detailPoints(f families, e *engine) {
	for i := range e.details {
		d := &e.details[i]
		state := 0.0
		if d.active {
			state = 1
		}
		f.add(semconv.MetricIDOwnDetailActive, state, e.res, d.name, d.source, d.reason)
		d.reducedPoints(f, e)
		for state, n := range d.changes {
			if n > 0 {
				f.add(semconv.MetricIDOwnProbeChanges, float64(n), e.res, d.name, [2]string{"inactive", "active"}[state])
			}
		}
	}
}
