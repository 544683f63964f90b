# A program that starts more than one process, and a supervisor that knows the first.
# rows: stop
# needs: python
# title: `supervisorctl stop`: `sh -c 'sleep & sleep'` | stop
bin=$INSTALLED/python/venv/bin
cat >supervisord.conf <<CONF
[supervisord]
nodaemon=true
logfile=$DIRECTORY/log
pidfile=$DIRECTORY/pid
[unix_http_server]
file=$DIRECTORY/sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://$DIRECTORY/sock
[program:app]
command=${penfold[*]} sh -c "sleep $TOKEN & sleep $TOKEN"
CONF
"$bin/supervisord" -c supervisord.conf >said 2>&1 &
await 2 sleep
"$bin/supervisorctl" -c supervisord.conf stop app
"$bin/supervisorctl" -c supervisord.conf shutdown >said
wait
