package governor

import (
	"fmt"
	"math"
	"time"
)

// Ladder is a group of probes with levels of detail, each dearer than the one below.
type Ladder interface {
	// Level is the one in force, 0 being nothing, and the most that was asked for.
	Level() (now, most int)
	// Spent is what hits of the probes have cost the process so far.
	Spent() (time.Duration, error)
	// Window is how long the level is looked at before it is judged: one that costs now and
	// then only is judged by its mean. 0: from tick to tick.
	Window() time.Duration
	// Step goes to a level; reason says why it is a lower one, of what its calls cost. After an error Level tells
	// where that led.
	Step(to int, reason string) error
}

// climber is the state of a ladder.
type climber struct {
	Ladder
	level   int // that is looked at
	begun   int64
	spent   time.Duration // when the window began
	share   float64       // of one core, in the latest whole window
	whole   bool          // that ended with this tick
	strikes int
	retryAt int64
	pause   time.Duration
}

// Watch has the governor keep a ladder within the budget too: over it, the ladder steps
// down where that is enough or it costs most, and up again after a pause.
func (g *Governor) Watch(l Ladder) {
	g.ladders = append(g.ladders, &climber{Ladder: l, level: -1, pause: retry, retryAt: never})
}

// look brings the windows of the ladders up to date.
func (g *Governor) look(at int64) error {
	for _, c := range g.ladders {
		c.whole = false
		now, _ := c.Level()
		spent, err := c.Spent()
		if err != nil {
			return fmt.Errorf("reading hits: %w", err)
		}
		if now != c.level || c.begun == 0 {
			c.level, c.begun, c.spent, c.share, c.strikes = now, at, spent, 0, 0
			continue
		}
		took := at - c.begun
		if took <= 0 || took < int64(c.Window()) {
			continue
		}
		c.share, c.whole = float64(spent-c.spent)/float64(took), true
		c.begun, c.spent = at, spent
	}
	return nil
}

// judgeLadder steps down if it is the turn of c, and reports whether c has been dealt with:
// the others are judged as if it were gone.
func (g *Governor) judgeLadder(c *climber, at int64, total float64) (bool, error) {
	if total <= g.budget.Work || c.share <= 0 || c.level == 0 {
		if c.whole {
			c.strikes = 0
		}
		return false, nil
	}
	if c.whole {
		c.strikes++
	}
	if c.strikes < strikes {
		return true, nil
	}
	beside := ""
	if c.share <= g.budget.Work {
		beside = fmt.Sprintf(" beside the %.1f %% of other probes", 100*(total-c.share))
	}
	err := c.Step(c.level-1, fmt.Sprintf("cost %.1f %% of a core%s, the budget is %.1f %%", 100*c.share, beside, 100*g.budget.Work))
	c.strikes, c.begun, c.share = 0, 0, 0
	c.retryAt = at + int64(c.pause)
	c.pause = min(2*c.pause, maxRetry)
	return true, err
}

// climb steps up where the pause is over.
func (g *Governor) climb(at int64) error {
	for _, c := range g.ladders {
		now, most := c.Level()
		if at < c.retryAt || now >= most {
			continue
		}
		// The next level, if there is one more, has a pause of its own.
		c.retryAt, c.begun = at+int64(c.pause), 0
		if err := c.Step(now+1, ""); err != nil {
			return err
		}
	}
	return nil
}

// never is when a probe is tried again that others put in.
const never = math.MaxInt64
