# want: dirty-params.c 1
$a\
\
system_ss.add(files('dirty-params.c'))
