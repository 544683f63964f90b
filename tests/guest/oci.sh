#!/bin/bash
# oci: `penfold oci` in front of crun, for podman on pure cgroup v2, with cgroups of systemd and without. docs/kubernetes.md.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

build() {
    local root=/tmp/box
    mkdir -p $root/bin $root/tmp $root/run $root/etc $root/proc $root/sys $root/dev
    cp /bin/busybox $root/bin/busybox
    for name in sh sleep setsid true env; do ln -sf busybox $root/bin/$name; done
    echo root:x:0:0::/:/bin/sh >$root/etc/passwd
    tar -C $root -cf /tmp/box.tar .
}
build
# conmon gives the runtime none of the caller's variables.
printf '#!/bin/sh\nexport PENFOLD_ROOT=/run/oci-test\nexec penfold oci "$@"\n' >/usr/local/bin/penfold-oci
chmod +x /usr/local/bin/penfold-oci
level=host
expect "podman takes the image" 0 "$(podman import /tmp/box.tar box >/out/import 2>&1; echo $?)"
expect "the delegate is crun" "crun *" "$(penfold oci --version 2>&1)"

no_container() { [[ -z $(podman ps -aq) ]]; }
no_cgroup() { [[ -z $(find /sys/fs/cgroup -type d \( -name 'libpod-*' -o -name 'penfold-exec-*' \)) ]]; }
notes() { find /run/oci-test/oci -type f 2>/dev/null | wc -l; }

for manager in systemd cgroupfs; do
    for runtime in crun penfold; do
        level=$manager-$runtime
        program=crun
        [[ $runtime == crun ]] || program=/usr/local/bin/penfold-oci
        pod() { podman --runtime $program --cgroup-manager $manager "$@"; }
        options=(--network none --log-driver none)

        next
        code=0
        pod run --rm "${options[@]}" box sh -c "setsid sleep $token & (sleep $token &) ; exit 3" >/out/run 2>&1 || code=$?
        expect "run --rm: the command's code" 3 "$code"
        becomes "run --rm: no member is left" gone
        expect "run --rm: no note is left" 0 "$(notes)"

        next
        pod run -d --name one --annotation dev.penfold.exec=contain "${options[@]}" box sh -c "trap 'exit 0' TERM; sleep $token & wait" >/out/run 2>&1
        becomes "the container runs" alive 1
        outer=$token
        next
        pod exec one sh -c "setsid sleep $token >/dev/null 2>&1 & :; exit 4" >/out/exec 2>&1
        expect "exec: the command's code" 4 $?
        pod exec one sh -c "env -i /bin/setsid /bin/sh -c 'exec sleep $token' >/dev/null 2>&1 & :" >/out/exec 2>&1
        if [[ $runtime == crun ]]; then
            becomes "exec: its strays live" alive 2
        else
            becomes "exec: no stray is left" gone
        fi
        token=$outer
        holds "the container lives" alive 1
        expect "stop" 0 "$(timeout 200 podman --runtime $program --cgroup-manager $manager stop -t 60 one >/out/stop 2>&1; echo $?)"
        expect "rm" 0 "$(pod rm one >/out/rm 2>&1; echo $?)"
        becomes "rm: no member is left" gone
        becomes "rm: no container is left" no_container
        becomes "rm: no cgroup is left" no_cgroup
        expect "rm: no note is left" 0 "$(notes)"

        next
        pod run -d --name two --pid host "${options[@]}" box sh -c "trap '' TERM; setsid sleep $token & (sleep $token &) ; wait" >/out/run 2>&1
        becomes "pids of the host: two members live" alive 2
        expect "pids of the host: rm -f" 0 "$(timeout 200 podman --runtime $program --cgroup-manager $manager rm -f -t 0 two >/out/rm 2>&1; echo $?)"
        becomes "pids of the host: no member is left" gone
        becomes "pids of the host: no cgroup is left" no_cgroup
        expect "pids of the host: no note is left" 0 "$(notes)"
    done
done
level=host
becomes "no process of penfold is left" unsupervised
ended
