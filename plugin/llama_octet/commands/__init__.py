"""The subcommands of `octet`, one file each: HELP, EXAMPLE, add_arguments, run, render."""
