# want: dirty-stats.c 1
$a\
system_ss.add(files('dirty-stats.c'))
