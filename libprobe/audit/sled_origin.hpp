// Where the sleds of a file came from: its undo record still holds the notes that the original had.
#pragma once

#include "libprobe/audit/probe.hpp"

namespace reprobe {

// Fills Probe::origin of the probes in kSledSection. Nothing is filled in where the record is gone
// or its notes are not those of the file: another tool rewrote it since.
void find_origins(const ElfFile& file, ProbeFile& probes);

}  // namespace reprobe
