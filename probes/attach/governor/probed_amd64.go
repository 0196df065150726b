package governor

func probed()

var probedAddr uintptr

func probedPC() uintptr { return probedAddr }
