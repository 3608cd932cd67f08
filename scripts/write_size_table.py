"""Write the table of sizes in memory into docs/tables/packed-weights.md.

    python scripts/write_size_table.py

Takes a minute; nothing is compiled, and no weight is needed.
"""

from table_pages import ROOT, import_references, replace_lines

PAGE = ROOT / "docs" / "tables" / "packed-weights.md"


def main() -> None:
    import_references()
    from size_table import table

    replace_lines(PAGE, "sizes in memory", table().splitlines())


if __name__ == "__main__":
    main()
