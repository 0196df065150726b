package workload

import (
	"math/rand/v2"
	"strings"
)

// words are the plain words that the tiny model's tokenizer was trained on
// (tests/engines/mkmodel.py), so that a word is about one token.
var words = strings.Fields(`a about after again air all along also an and animal another answer any are around as ask at away back be
because been before began being below between big book both boy but by call came can car carry change children city
close cold come country cut day did different do does down draw each earth eat end enough even every example eye face
family far father feet few find first follow food for form found four from game get girl give go good great group grow
had hand hard has have he head hear help her here high him his home house how idea if important in into is it just keep
kind know land large last late learn leave left letter life light like line list little live long look made make man
many mean men might mile more most mother mountain move much must my name near need never new next night no not now
number of off often oil old on once one only open or other our out over own page paper part people picture place plant
play point read really right river room run said same saw say school sea second see seem sentence set she should show
side small so some something sometimes song soon sound spell stand start state still stop story study such take talk
tell than that the their them then there these they thing think this those thought three through time to together too
took tree try turn two under until up us use very walk want was watch water way we well went were what when where which
while white who why will with without word work world would write year you young your`)

// text returns n words.
func text(r *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.String()
}
