# Installs the trainer's wheel into /opt/trainer, and writes the bill of materials to /usr/share/sbom/$1. The stage `wheel` is
# mounted at /mnt.
set -e
/mnt/opt/tools/bin/uv pip install --quiet --python /opt/trainer --no-cache --no-deps --no-index --compile-bytecode /mnt/wheel/*.whl
rm -f /opt/trainer/.lock # uv leaves it, writable by everybody
mkdir /usr/share/sbom
/mnt/opt/tools/bin/python /mnt/opt/tools/sbom.py /opt/trainer/bin/python "/usr/share/sbom/$1"
