# pm2 ends the tree as it is found by parents: a daemon has none in it.
# rows: stop
# needs: fast
# title: `pm2 stop`: `sh -c 'setsid sleep & sleep'` below a shell | stop
export PM2_HOME=$DIRECTORY/pm2
pm2=$INSTALLED/fast/node_modules/.bin/pm2
printf '#!/bin/sh\n(setsid sleep %s &)\nsleep %s\n' "$TOKEN" "$TOKEN" >app
chmod +x app
"$pm2" start --silent --interpreter none --name app "${penfold[0]:-$DIRECTORY/app}" ${penfold:+-- "${penfold[@]:1}" "$DIRECTORY/app"} >said
await 2 sleep
"$pm2" stop --silent app
"$pm2" kill --silent
