"""Byte ranges of an ELF file that a repair of its notes may touch, read without any ELF tool.

Formats: ELF specification, ELF header and section header table, both classes and byte orders."""
import struct

SHT_RELA, SHT_REL = 4, 9
NOTE = ".note.stapsdt"


def sections(data):
    """(name, type, offset, size, info, offset of the header, size of the header) of each.

    `data` are bytes or a mapping of the file."""
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    if wide:
        table, = struct.unpack_from(order + "Q", data, 0x28)
        entry, count, names = struct.unpack_from(order + "3H", data, 0x3A)
    else:
        table, = struct.unpack_from(order + "I", data, 0x20)
        entry, count, names = struct.unpack_from(order + "3H", data, 0x2E)
    layout = order + ("IIQQQQIIQQ" if wide else "10I")
    raw = [struct.unpack_from(layout, data, table + i * entry) for i in range(count)]
    strings = raw[names][4] if count else 0
    result = []
    for i, (name, kind, _, _, offset, size, _, info, _, _) in enumerate(raw):
        start = strings + name
        text = data[start:data.find(b"\0", start)].decode("ascii", "replace")
        result.append((text, kind, offset, size, info, table + i * entry, entry))
    return result


def repairable(data):
    """The ranges (start, end, what) of the notes, their relocations, and the headers of both."""
    found = sections(data)
    ranges = []
    for index, (name, kind, offset, size, _, header, entry) in enumerate(found):
        if name != NOTE:
            continue
        ranges += [(offset, offset + size, name), (header, header + entry, name + " header")]
        for table, other, start, length, info, at, entry_size in found:
            if other in (SHT_RELA, SHT_REL) and info == index:
                ranges += [(start, start + length, table), (at, at + entry_size, table + " header")]
    return sorted(ranges)


def strange_difference(before, after):
    """The first difference outside repairable(before), in words; None if there is none."""
    if len(before) != len(after):
        return f"the size changed from {len(before)} to {len(after)}"
    masked_before, masked_after = bytearray(before), bytearray(after)
    for start, end, _ in repairable(before):
        masked_before[start:end] = masked_after[start:end] = bytes(end - start)
    if masked_before == masked_after:
        return None
    at = next(i for i, (a, b) in enumerate(zip(masked_before, masked_after)) if a != b)
    inside = [name for name, kind, offset, size, *_ in sections(before)
              if kind != 8 and offset <= at < offset + size]
    return f"byte {at:#x} ({', '.join(inside) or 'no section'}) changed"
