"""The benchmarks' report in the form of report.h: a table for people, JSON for machines."""
import json


def row(name, value, unit, roof=0, roof_name="", seconds=0):
    """One measurement beside the limit that was measured in the same run; roof 0: none."""
    entry = {"name": name, "value": value, "unit": unit}
    if seconds > 0:
        entry["seconds"] = seconds
    if roof > 0:
        entry.update(roof=roof, roof_name=roof_name, share=value / roof)
    return entry


def with_goal(entry, sign, limit):
    """The row, with what its share, or its value if it has no limit, is to be."""
    value = entry.get("share", entry["value"])
    met = {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}
    entry.update(goal=f"{sign} {limit}", met=met[sign])
    return entry


def print_report(bench, about, rows, as_json):
    """On standard output. `about` names the machine's side of it."""
    if as_json:
        print(json.dumps({"bench": bench, "about": about, "rows": rows}, indent=2))
        return
    print(f"{bench}: {about}")
    for entry in rows:
        line = f"  {entry['name']:56} {entry['value']:10.2f} {entry['unit']:8}"
        if "roof" in entry:
            line += f" {100 * entry['share']:5.1f}% of {entry['roof']:.1f} ({entry['roof_name']})"
        if "seconds" in entry:
            line += f"  {entry['seconds']:.4f} s"
        if "spread" in entry:
            line += f"  spread {entry['spread']:.4f}"
        if "goal" in entry:
            line += f"  goal {entry['goal']}: {'met' if entry['met'] else 'missed'}"
        print(line.rstrip())
