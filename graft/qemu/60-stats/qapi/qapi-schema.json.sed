# want: dirty-sync.json 1
/'include': 'migration.json'/i\
{ 'include': 'dirty-sync.json' }
