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
		const count, nodes, share, mean = 13, 13, 8, 10
		all := k.Launches + k.InGraphs
		columns := count + share
		head := right("launches", count)
		if k.InGraphs > 0 {
			columns += nodes
			head += right("in graphs", nodes)
		}
		head += right("share", share)
		if k.Steps > 0 {
			columns += mean
			head += right("per step", mean)
		}
		width := max(p.width-columns, 20)
		p.heading(left(title, width) + head)
		row := func(name string, host, inGraphs int64) {
			n := host + inGraphs
			line := left(name, width) + right(num(host), count)
			if k.InGraphs > 0 {
				line += right(num(inGraphs), nodes)
			}
			line += right(fmt.Sprintf("%.1f%%", 100*float64(n)/float64(all)), share)
			if k.Steps > 0 {
				line += right(fmt.Sprintf("%.2f", float64(n)/float64(k.Steps)), mean)
			}
			p.line(line)
		}
		var rest, restInGraphs int64
		for j, one := range k.Kernels {
			if j < topKernels || len(k.Kernels) == topKernels+1 {
				row(middle(Clean(one.Name), width-1), one.Launches, one.InGraphs)
			} else {
				rest, restInGraphs = rest+one.Launches, restInGraphs+one.InGraphs
			}
		}
		if rest+restInGraphs > 0 {
			row(plural(len(k.Kernels)-topKernels, "other kernel"), rest, restInGraphs)
		}
		if k.Beyond+k.BeyondInGraphs > 0 {
			row("not told apart, for lack of room", k.Beyond, k.BeyondInGraphs)
		}
		if k.Reused+k.ReusedInGraphs > 0 {
			row("of handles that changed their kernel", k.Reused, k.ReusedInGraphs)
		}
		text := fmt.Sprintf("%s of %s, as the host called for them", num(all)+" launches", plural(len(k.Kernels), "kernel"))
		if k.InGraphs > 0 {
			text += fmt.Sprintf(" (%s) and as nodes of graphs that it called for (%s, in %s of graphs)", num(k.Launches), num(k.InGraphs), num(k.Graphs)+" launches")
		}
		if unnamed := k.GraphsUnseen + k.GraphsChanged + k.GraphsBeyond; unnamed > 0 {
			text += fmt.Sprintf("; what %s of graphs launched is not known, and left out:", num(unnamed)+" launches")
			for _, why := range []struct {
				n    int64
				text string
			}{{k.GraphsUnseen, "of graphs not seen being made"}, {k.GraphsChanged, "of graphs made or changed node by node"}, {k.GraphsBeyond, "for lack of room"}} {
				if why.n > 0 {
					text += fmt.Sprintf(" %s %s,", num(why.n), why.text)
				}
			}
			text = strings.TrimSuffix(text, ",")
		}
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
			text += fmt.Sprintf("; without a name: %.1f%%", 100*float64(k.Unnamed)/float64(all))
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
