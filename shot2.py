import sys
from playwright.sync_api import sync_playwright
base="http://127.0.0.1:18131"; 
with sync_playwright() as p:
    b=p.chromium.launch(executable_path="/usr/bin/chromium",args=["--no-sandbox","--disable-gpu","--disable-quic","--no-first-run","--disable-background-networking","--disable-component-update","--disable-sync"])
    c=b.new_context(color_scheme="light",viewport={"width":1280,"height":800}); pg=c.new_page()
    for a in sys.argv[1:]:
        name,path=a.split("=",1)
        pg.goto(base+path); pg.wait_for_timeout(300); pg.screenshot(path=f"/tmp/w/dash/{name}.png",full_page=True)
    b.close()
