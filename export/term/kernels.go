package term

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"inferspan/correlate"
)

// SetKernels sets what engines launched.
func (s *Summary) SetKernels(kernels []correlate.EngineKernels) { s.kernels = kernels }

// topKernels are listed for each engine.
const topKernels = 15

// kernelTables writes a table for each engine: what was launched most.
func (s *Summary) kernelTables(p *page) {
	for i := range s.kernels {
		k := &s.kernels[i]
		title := "TOP KERNELS"
		if len(s.kernels) > 1 {
			title += " " + Cut(Clean(k.Model), 40)
		}
		const count, share, mean = 13, 8, 10
		columns := count + share
		head := right("launches", count) + right("share", share)
		if k.Steps > 0 {
			columns += mean
			head += right("per step", mean)
		}
		width := max(p.width-columns, 20)
		p.heading(left(title, width) + head)
		row := func(name string, n int64) {
			line := left(name, width) + right(num(n), count) + right(fmt.Sprintf("%.1f%%", 100*float64(n)/float64(k.Launches)), share)
			if k.Steps > 0 {
				line += right(fmt.Sprintf("%.2f", float64(n)/float64(k.Steps)), mean)
			}
			p.line(line)
		}
		var rest int64
		for j, one := range k.Kernels {
			if j < topKernels || len(k.Kernels) == topKernels+1 {
				row(middle(Clean(one.Name), width-1), one.Launches)
			} else {
				rest += one.Launches
			}
		}
		if rest > 0 {
			row(plural(len(k.Kernels)-topKernels, "other kernel"), rest)
		}
		if k.Beyond > 0 {
			row("not told apart, for lack of room", k.Beyond)
		}
		if k.Reused > 0 {
			row("of handles that changed their kernel", k.Reused)
		}
		text := fmt.Sprintf("%s of %s, as the host called for them, those in graphs left out", num(k.Launches)+" launches", plural(len(k.Kernels), "kernel"))
		if k.Steps > 0 {
			text += fmt.Sprintf("; the mean is over the %s that began while they were counted", plural(int(k.Steps), "step"))
		}
		if n := k.Together; n.Steps > 0 {
			text += fmt.Sprintf("; %.2f in a step by all workers (mean of %s)", perStep(n), plural(int(n.Steps), "step"))
		}
		for _, n := range k.Ranks {
			text += fmt.Sprintf("; %.2f by rank %d (%s)", perStep(n), n.Rank, plural(int(n.Steps), "step"))
		}
		if k.Unnamed > 0 {
			text += fmt.Sprintf("; without a name: %.1f%%", 100*float64(k.Unnamed)/float64(k.Launches))
		}
		if k.Unnoted > 0 {
			text += fmt.Sprintf("; %s came too fast to be noted", plural(int(k.Unnoted), "name"))
		}
		p.line(Wrap(text, "", p.width))
	}
}

// perStep is the mean over steps, of which there are some.
func perStep(n correlate.StepKernels) float64 { return float64(n.Kernels) / float64(n.Steps) }

// middle shortens s to n columns; a tilde stands for what is missing, which is of the
// middle: templates differ at their ends.
func middle(s string, n int) string {
	have := utf8.RuneCountInString(s)
	if have <= n || n < 8 {
		return Cut(s, n)
	}
	r := []rune(s)
	head := (n - 1) * 2 / 3
	return strings.TrimRight(string(r[:head]), " ") + "~" + string(r[have-(n-1-head):])
}
